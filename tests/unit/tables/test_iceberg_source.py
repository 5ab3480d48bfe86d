"""Snapshots of Iceberg tables as datasets: their rows, what a later one costs, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimeType,
)
from tests.unit.execute.test_query_run import HereRunner, start
from tests.unit.tables.iceberg_kit import (
    DeleteKind,
    catalog_in,
    commit_deletes,
    data_files,
    delete_rows,
    equality_delete_file,
    local,
    properties,
    runs_here,
)

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.errors import DataLost, UserError
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.shuffle.reports import QueryReport

COLUMNS = Schema(
    NestedField(1, "day", StringType()),
    NestedField(2, "a", IntegerType()),
    NestedField(3, "f", FloatType()),
)
BY_DAY = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_in(tmp_path)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[ShuffleWorkspace, mr.Workspace]]:
    with runs_here(tmp_path / "mill", one_task_bytes_max=1, partition_bytes_target=64) as both:
        yield both


def rows(day: str, *numbers: int) -> pa.Table:
    return pa.table(
        {
            "day": pa.array([day] * len(numbers)),
            "a": pa.array(numbers, pa.int32()),
            "f": pa.array([number / 2 for number in numbers], pa.float32()),
        }
    )


def ran(workspace: ShuffleWorkspace, query: Dataset) -> tuple[list[dict[str, Any]], QueryReport]:
    run = start(workspace, query, HereRunner())
    found = [row for batch in run.batches() for row in batch.to_pylist()]
    return sorted(found, key=str), run.report


def theirs(table: Table, **scan: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - of pyiceberg
    return sorted(table.scan(**scan).to_arrow().to_pylist(), key=str)


def test_a_snapshot_is_read_as_pyiceberg_reads_it_and_stays_what_it_was(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog, tmp_path: Path
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS, partition_spec=BY_DAY)
    table.append(rows("mon", 1, 2))
    first = table.current_snapshot()
    assert first is not None

    by_name = ws.read_iceberg("db.t", catalog=properties(tmp_path))
    by_file = ws.read_iceberg(table.metadata_location)
    before, _ = ran(workspace, by_name)
    table.append(rows("tue", 3))
    later = ws.read_iceberg("db.t", catalog=catalog)

    assert before == theirs(table, snapshot_id=first.snapshot_id)
    assert ran(workspace, by_name)[0] == before, "the snapshot was chosen when it was described"
    assert ran(workspace, by_file)[0] == before
    assert ran(workspace, later)[0] == theirs(table)
    old = ws.read_iceberg("db.t", catalog=catalog, snapshot=first.snapshot_id)
    assert ran(workspace, old)[0] == before


@pytest.mark.parametrize("kind", ["files", "vectors"])
@pytest.mark.parametrize("together", [True, False])
def test_a_new_snapshot_costs_the_files_that_changed(
    opened: tuple[ShuffleWorkspace, mr.Workspace],
    catalog: Catalog,
    kind: DeleteKind,
    *,
    together: bool,
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS, partition_spec=BY_DAY)
    for number in range(4):
        table.append(rows("mon", number, number + 10))

    def tasks() -> tuple[int, int]:
        query = ws.read_iceberg("db.t", catalog=catalog).group_by("day").agg(n="sum(a)")
        found, report = ran(workspace, query)
        wanted = theirs(table)
        assert sum(row["n"] for row in found) == sum(row["a"] for row in wanted)
        return report.stages[0].map_tasks, report.stages[0].reused

    assert tasks() == (4, 0)
    assert tasks() == (4, 4)
    table.append(rows("tue", 7))
    assert tasks() == (5, 4), "one file more"
    files = data_files(table)
    delete_rows(table, {files[0].file_path: [1], files[2].file_path: [0]}, kind, together=together)
    table = catalog.load_table("db.t")
    assert tasks() == (5, 3), "rows of two files were deleted"
    with table.update_schema() as change:
        change.add_column("note", StringType())
        change.rename_column("f", "half")
    assert tasks() == (5, 5), "other columns changed"
    with table.update_schema() as change:
        change.update_column("a", LongType())
    assert tasks() == (5, 0), "the sums are of another type"


@pytest.mark.parametrize("kind", ["files", "vectors"])
def test_deleted_rows_are_gone_and_rows_written_later_are_not(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog, kind: DeleteKind
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows("mon", *range(100)))
    (file,) = data_files(table)
    delete_rows(table, {file.file_path: [0, 5, 99]}, kind)
    table.refresh()
    delete_rows(table, {file.file_path: [5, 6]}, kind)
    table.refresh()
    table.append(rows("mon", *range(100, 105)))

    found, _ = ran(workspace, ws.read_iceberg("db.t", catalog=catalog))

    assert found == theirs(table)
    assert len(found) == 101


def test_columns_that_were_renamed_dropped_widened_and_added_again_are_found(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS, partition_spec=BY_DAY)
    table.append(rows("mon", 1))
    with table.update_schema() as change:
        change.update_column("a", LongType())
        change.rename_column("a", "number")
        change.delete_column("f")
    with table.update_schema() as change:
        change.add_column("f", StringType())
        change.add_column("a", IntegerType())
        change.move_first("f")
    with table.update_spec() as spec:
        spec.remove_field("day")
        spec.add_identity("a")
    more = pa.table(
        {
            "f": ["x"],
            "day": ["tue"],
            "number": pa.array([1 << 40]),
            "a": pa.array([7], pa.int32()),
        }
    )
    table.append(more)

    data = ws.read_iceberg("db.t", catalog=catalog)
    found, _ = ran(workspace, data)

    assert data.columns == ["f", "day", "number", "a"]
    assert found == theirs(table)


def test_a_filter_leaves_out_files_by_partitions_and_by_bounds(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS, partition_spec=BY_DAY)
    for number, day in enumerate(["mon", "tue", "wed", "wed"]):
        table.append(rows(day, number * 10, number * 10 + 5))
    data = ws.read_iceberg("db.t", catalog=catalog)

    def read(condition: str) -> tuple[int, int]:
        found, report = ran(workspace, data.filter(condition))
        return len(found), report.stages[0].map_tasks

    assert read("day = 'wed'") == (4, 2)
    assert read("a > 12 AND a < 22") == (2, 2)
    assert read("a = 30 AND day = 'wed'") == (1, 1)
    assert read("a = 30 AND day = 'mon'") == (0, 1)
    assert read("f < 2.0D") == (1, 1)


def test_an_empty_table_has_its_columns(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS)

    assert ran(workspace, ws.read_iceberg("db.t", catalog=catalog))[0] == []
    table.append(rows("mon", 1))
    table.delete("a = 1")
    data = ws.read_iceberg("db.t", catalog=catalog)
    assert (data.columns, ran(workspace, data)[0]) == (["day", "a", "f"], [])


def test_branches_and_tags_are_read_with_the_columns_that_they_have(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows("mon", 1))
    first = table.current_snapshot()
    assert first is not None
    table.manage_snapshots().create_tag(first.snapshot_id, "v1").create_branch(
        first.snapshot_id, "side"
    ).commit()
    with table.update_schema() as change:
        change.add_column("note", StringType())

    tag = ws.read_iceberg("db.t", catalog=catalog, snapshot="v1")
    branch = ws.read_iceberg("db.t", catalog=catalog, snapshot="side")

    assert tag.columns == ["day", "a", "f"]
    assert branch.columns == ["day", "a", "f", "note"]
    assert [len(ran(workspace, one)[0]) for one in (tag, branch)] == [1, 1]


def test_files_that_were_added_from_elsewhere_are_read_by_names_and_partitions(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog, tmp_path: Path
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS)
    path = tmp_path / "more.parquet"
    pq.write_table(rows("mon", 1, 2), path)
    table.add_files([f"file://{path}"])
    with table.update_schema() as change:
        change.rename_column("a", "number")

    assert ran(workspace, ws.read_iceberg("db.t", catalog=catalog))[0] == theirs(table)


def test_what_cannot_be_read_is_refused_by_its_name(catalog: Catalog, tmp_path: Path) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows("mon", 1))
    with table.update_schema() as change:
        change.add_column("at", TimeType())
    equal = catalog.create_table("db.equal", COLUMNS)
    equal.append(rows("mon", 1))
    commit_deletes(equal, [equality_delete_file(equal, data_files(equal)[0], 2)])

    with mr.open(tmp_path / "mill", create=True) as ws:
        with pytest.raises(UserError, match=r"(?s)column 'at'.*time.*Spark"):
            ws.read_iceberg("db.t", catalog=catalog)
        with pytest.raises(UserError, match=r"(?s)db\.equal.*equality deletes.*compact"):
            ws.read_iceberg("db.equal", catalog=catalog)
        with pytest.raises(UserError, match="no snapshot 7"):
            ws.read_iceberg("db.t", catalog=catalog, snapshot=7)
        with pytest.raises(UserError, match="no Iceberg table db.other"):
            ws.read_iceberg("db.other", catalog=catalog)
        with pytest.raises(UserError, match="has no table"):
            ws.read_iceberg(None)


def test_equality_deletes_that_are_older_than_the_data_do_not_matter(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows("mon", 1))
    commit_deletes(table, [equality_delete_file(table, data_files(table)[0], 2)])
    table.refresh()
    (old,) = data_files(table)
    table.delete(f"a = {1}")
    table.append(rows("mon", 5))

    assert old.file_path not in {file.file_path for file in data_files(table)}
    assert ran(workspace, ws.read_iceberg("db.t", catalog=catalog))[0] == [
        {"day": "mon", "a": 5, "f": 2.5}
    ]


def test_a_deletion_vector_that_was_damaged_is_an_error_and_no_row(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog
) -> None:
    workspace, ws = opened
    table = catalog.create_table("db.t", COLUMNS)
    table.append(rows("mon", 1, 2, 3))
    delete_rows(table, {data_files(table)[0].file_path: [1]}, "vectors")
    (path,) = local(table.location()).glob("data/*.puffin")
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)

    with pytest.raises(DataLost, match="not as it was written"):
        ran(workspace, ws.read_iceberg("db.t", catalog=catalog))


def test_no_property_of_a_catalog_is_written_or_shown(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog, tmp_path: Path
) -> None:
    workspace, ws = opened
    catalog.create_table("db.t", COLUMNS).append(rows("mon", 1))
    secret = "s3cr3t-of-nobody"  # noqa: S105 - of a test
    given = {**properties(tmp_path), "s3.secret-access-key": secret, "token": secret}

    ran(workspace, ws.read_iceberg("db.t", catalog=given))
    with pytest.raises(UserError) as told:
        ws.read_iceberg("db.t", catalog={"type": "sql", "uri": f"none://{secret}"})

    assert secret not in str(told.value)
    written = [path for path in (tmp_path / "mill").rglob("*") if path.is_file()]
    assert written
    assert not any(secret.encode() in path.read_bytes() for path in written)


def test_days_as_partitions_are_days(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog
) -> None:
    workspace, ws = opened
    days = pa.table({"d": [date(2024, 5, 1), None], "n": pa.array([1, 2], pa.int64())})
    table = catalog.create_table("db.t", days.schema)
    with table.update_spec() as spec:
        spec.add_identity("d")
    table.append(days)

    data = ws.read_iceberg("db.t", catalog=catalog)

    assert ran(workspace, data)[0] == theirs(table)
    found, report = ran(workspace, data.filter("d = DATE '2024-05-01'"))
    assert (len(found), report.stages[0].map_tasks) == (1, 1)
