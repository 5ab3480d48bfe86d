"""Whole results in Iceberg tables: appended, instead of partitions, or by keys; once for a name."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from tests.unit.execute.test_query_run import HereRunner, start
from tests.unit.tables.iceberg_kit import catalog_in, properties, runs_here

import millrace as mr
from millrace.errors import UserError
from millrace.execute.results.table_results import write_files
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.tables.iceberg import iceberg_commits
from millrace.tables.iceberg.iceberg_history import sharing_snapshots
from millrace.tables.iceberg.iceberg_target import target_of
from millrace.tables.iceberg.iceberg_whole_writes import IcebergWrite


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return catalog_in(tmp_path)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[ShuffleWorkspace, mr.Workspace]]:
    with runs_here(tmp_path / "mill", one_task_bytes_max=1, partition_bytes_target=64) as both:
        yield both


def rows(day: str, *numbers: int) -> pa.Table:
    return pa.table(
        {"day": pa.array([day] * len(numbers), pa.string()), "n": pa.array(numbers, pa.int64())}
    )


def write_of(
    tmp_path: Path, mode: str = "append", once: str | None = None, keys: tuple[str, ...] = ()
) -> IcebergWrite:
    target = target_of("db.t", properties(tmp_path), call="write_iceberg()")
    return IcebergWrite(target, mode, keys, once, "write_iceberg()")


def written(write: IcebergWrite, *tables: pa.Table) -> int | None:
    """What a dataset does: look, write files, commit them."""
    whole = pa.concat_tables(tables)
    write.check(whole.schema, mr.Config())
    if write.is_done():
        return None
    if write.mode == "upsert":
        return write.upsert(whole)
    writer = write.target.writer(whole.schema, mr.Config(), who=write.who)
    files = [file for one in tables if one.num_rows for file in writer.write([one], uuid4().hex)]
    return write.commit(files)


def there(catalog: Catalog) -> list[tuple[str, int]]:
    found = catalog.load_table("db.t").scan().to_arrow().to_pylist()
    return sorted((row["day"], row["n"]) for row in found)


def by_day(catalog: Catalog) -> None:
    table = catalog.create_table("db.t", rows("a", 1).schema)
    with table.update_spec() as spec:
        spec.add_identity("day")


def test_tasks_write_the_files_of_a_query_and_one_commit_shows_them(
    opened: tuple[ShuffleWorkspace, mr.Workspace], catalog: Catalog, tmp_path: Path
) -> None:
    workspace, ws = opened
    by_day(catalog)
    data = ws.from_arrow(pa.concat_tables([rows("mon", *range(50)), rows("tue", *range(20))]))
    query = data.group_by("day").agg(n="sum(n)")
    run = start(workspace, query, HereRunner())
    write = write_of(tmp_path)
    write.check(query.arrow_schema, mr.Config())

    def files(answer: Any) -> list[Any]:  # noqa: ANN401 - of a run
        return write_files(HereRunner(tries=2), workspace, answer, write.target, "w")

    version = write.commit(run.with_answer(files))

    assert version == catalog.load_table("db.t").metadata.current_snapshot_id
    assert there(catalog) == [("mon", sum(range(50))), ("tue", sum(range(20)))]


def test_a_write_is_made_once_for_its_name(catalog: Catalog, tmp_path: Path) -> None:
    first = written(write_of(tmp_path, once="monday"), rows("mon", 1, 2))
    again = written(write_of(tmp_path, once="monday"), rows("mon", 1, 2))
    other = written(write_of(tmp_path, once="tuesday"), rows("tue", 3))
    written(write_of(tmp_path), rows("wed", 4))
    written(write_of(tmp_path), rows("wed", 4))

    assert [commit is None for commit in (first, again, other)] == [False, True, False]
    assert there(catalog) == [("mon", 1), ("mon", 2), ("tue", 3), ("wed", 4), ("wed", 4)]


def test_two_writes_of_one_name_at_once_leave_one(catalog: Catalog, tmp_path: Path) -> None:
    one, two = (write_of(tmp_path, once="monday") for _ in range(2))
    one.check(rows("mon", 1).schema, mr.Config())
    writer = one.target.writer(rows("mon", 1).schema, mr.Config(), who="w")
    made = [writer.write([rows("mon", number)], f"{number}") for number in (1, 2)]

    assert one.commit(made[0]) is not None
    assert two.commit(made[1]) is None
    assert there(catalog) == [("mon", 1)]


def test_partitions_are_overwritten_and_others_stay(catalog: Catalog, tmp_path: Path) -> None:
    by_day(catalog)
    written(write_of(tmp_path), rows("mon", 1, 2), rows("tue", 3), rows("wed", 4))

    written(write_of(tmp_path, "overwrite"), rows("mon", 9), rows("thu", 5))
    written(write_of(tmp_path, "overwrite"), rows("none"))

    assert there(catalog) == [("mon", 9), ("thu", 5), ("tue", 3), ("wed", 4)]


def test_a_table_without_partitions_is_overwritten_whole(catalog: Catalog, tmp_path: Path) -> None:
    written(write_of(tmp_path), rows("mon", 1, 2))
    written(write_of(tmp_path, "overwrite", once="x"), rows("tue", 3))
    written(write_of(tmp_path, "overwrite", once="x"), rows("tue", 3))

    assert there(catalog) == [("tue", 3)]


def test_rows_replace_those_with_equal_keys(catalog: Catalog, tmp_path: Path) -> None:
    written(write_of(tmp_path), rows("mon", 1, 2))

    written(write_of(tmp_path, "upsert", "x", ("n",)), rows("tue", 2, 3))
    written(write_of(tmp_path, "upsert", "x", ("n",)), rows("wed", 2, 3))

    assert there(catalog) == [("mon", 1), ("tue", 2), ("tue", 3)]
    with pytest.raises(UserError, match="does not take these rows"):
        written(write_of(tmp_path, "upsert", keys=("n",)), rows("tue", 2, 2))


@pytest.mark.parametrize(("mode", "keys"), [("upsert", ("n",)), ("overwrite", ())])
def test_rows_that_others_add_meanwhile_are_replaced_too(
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    keys: tuple[str, ...],
) -> None:
    written(write_of(tmp_path), rows("mon", 1))
    others = iter([rows("wed", 2)])

    def others_are_quicker(point: str) -> None:
        other = next(others, None) if point == "iceberg.commit.before_catalog" else None
        if other is not None:
            catalog.load_table("db.t").append(other)

    monkeypatch.setattr(iceberg_commits, "fault", others_are_quicker)
    written(write_of(tmp_path, mode, keys=keys), rows("tue", 1, 2))

    assert there(catalog) == [("tue", 1), ("tue", 2)]


@pytest.mark.usefixtures("catalog")
def test_rows_without_a_key_are_refused_by_name(tmp_path: Path) -> None:
    nothing = pa.table({"day": ["wed"], "n": pa.array([None], pa.int64())})
    with pytest.raises(UserError, match="no key 'n'"):
        written(write_of(tmp_path, "upsert", keys=("n",)), nothing)


def test_keys_can_be_columns_that_the_table_requires(catalog: Catalog, tmp_path: Path) -> None:
    day, n = NestedField(1, "day", StringType()), NestedField(2, "n", LongType(), required=True)
    catalog.create_table("db.t", Schema(day, n))
    written(write_of(tmp_path), rows("mon", 1, 2))

    written(write_of(tmp_path, "upsert", keys=("n",)), rows("tue", 2, 3))

    assert there(catalog) == [("mon", 1), ("tue", 2), ("tue", 3)]
    nothing = pa.table({"day": ["wed"], "n": pa.array([None], pa.int64())})
    with pytest.raises(UserError, match="requires values"):
        written(write_of(tmp_path, "upsert", keys=("day",)), nothing)


@pytest.mark.parametrize(
    ("mode", "keys", "told"),
    [
        ("merge", (), "append, overwrite, upsert"),
        ("upsert", (), "keys= is for mode 'upsert'"),
        ("append", ("n",), "keys= is for mode 'upsert'"),
        ("upsert", ("other",), "names columns of the rows"),
    ],
)
def test_wrong_calls_are_refused(
    catalog: Catalog, tmp_path: Path, mode: str, keys: tuple[str, ...], told: str
) -> None:
    del catalog
    with pytest.raises(UserError, match=told):
        written(write_of(tmp_path, mode, keys=keys), rows("mon", 1))


def test_partitions_that_are_no_values_of_columns_are_not_overwritten(
    catalog: Catalog, tmp_path: Path
) -> None:
    table = catalog.create_table("db.t", rows("a", 1).schema)
    with table.update_spec() as spec:
        spec.add_field("n", "bucket[4]")

    with pytest.raises(UserError, match=r"n_bucket_4, which is bucket\[4\]"):
        written(write_of(tmp_path, "overwrite"), rows("mon", 1))
    written(write_of(tmp_path), rows("mon", 1))
    assert there(catalog) == [("mon", 1)]


def test_a_commit_leaves_the_newest_snapshots_and_those_with_a_name(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        written(write_of(tmp_path), rows("mon", n))
    table = catalog.load_table("db.t")
    oldest = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().create_tag(oldest, "first").commit()
    target = target_of("db.t", properties(tmp_path), call="w", keep_snapshots=2)
    short = IcebergWrite(target, "append", (), None, "w")

    def others_commit_and_expire(point: str) -> None:
        if point == "iceberg.commit.before_catalog":
            monkeypatch.setattr(iceberg_commits, "fault", lambda _: None)
            written(IcebergWrite(target, "append", (), None, "w"), rows("tue", 5))

    monkeypatch.setattr(iceberg_commits, "fault", others_commit_and_expire)
    newest = written(short, rows("tue", 6))

    metadata = catalog.load_table("db.t").metadata
    assert metadata.current_snapshot_id == newest
    assert len(metadata.snapshots) == 3
    assert oldest in {snapshot.snapshot_id for snapshot in metadata.snapshots}
    assert len(metadata.snapshot_log) <= 3
    assert there(catalog) == [("mon", n) for n in range(4)] + [("tue", 5), ("tue", 6)]
    with pytest.raises(UserError, match="keep_snapshots is 0"):
        target_of("db.t", properties(tmp_path), call="w", keep_snapshots=0)


def test_copies_share_snapshots_within_a_commit_alone(catalog: Catalog, tmp_path: Path) -> None:
    written(write_of(tmp_path), rows("mon", 1))
    snapshot = catalog.load_table("db.t").metadata.snapshots[0]

    with sharing_snapshots():
        assert deepcopy(snapshot) is snapshot
    copied = deepcopy(snapshot)
    assert copied == snapshot
    assert copied is not snapshot
