"""Results in partition folders: rows are in their own files, as DuckDB and pyarrow see them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.execute.test_query_run import HereRunner, start
from tests.unit.tables.iceberg_kit import runs_here

import millrace as mr
from millrace.errors import UnsupportedType, UserError
from millrace.execute.results import parquet_results, partition_files
from millrace.execute.results.written_stage import WrittenStage
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.scan.partition_paths import check_partition_by
from millrace.shuffle.reports import ParquetWritten
from millrace.storage.storage_options import StorageOptions

TEXTS = ["plain", "a/b", "a%2Fb", "x=y", "ä b", "", None, "tab\there"]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[ShuffleWorkspace, mr.Workspace]]:
    with runs_here(tmp_path / "mill", one_task_bytes_max=1, partition_bytes_target=64) as both:
        yield both


def write(
    workspace: ShuffleWorkspace, query: mr.Dataset, path: Path, *by: str, mode: str = "error"
) -> ParquetWritten:
    parquet_results.check_parquet(query.arrow_schema, "snappy", by)
    with parquet_results.draft_at(str(path), mode, StorageOptions(), workspace) as draft:
        target = parquet_results.target_in(draft, query.arrow_schema, "snappy", by)
        run = start(workspace, query, HereRunner(tries=2), writes=WrittenStage(target))
        publish = partial(parquet_results.publish_files, target, draft, workspace.config)
        return run.with_answer(publish)


def duckdb_rows(path: Path) -> list[tuple[object, ...]]:
    text = "SELECT n, s, day FROM read_parquet(?, hive_partitioning=true, hive_types=?)"
    types = "{'s': VARCHAR, 'day': DATE}"
    with duckdb.connect() as connection:
        query = text.replace("hive_types=?", f"hive_types={types}")
        return sorted(connection.execute(query, [f"{path}/**/*.parquet"]).fetchall(), key=str)


def test_rows_are_in_the_folder_of_their_values(
    opened: tuple[ShuffleWorkspace, mr.Workspace], tmp_path: Path
) -> None:
    workspace, ws = opened
    count = 200
    data = pa.table(
        {
            "n": range(count),
            "s": pa.array([TEXTS[n % len(TEXTS)] for n in range(count)]),
            "day": pa.array([date(2024, 5, 1 + n % 3) for n in range(count)]),
        }
    )
    query = ws.from_arrow(data).group_by("n", "s", "day").agg(m="count(*)")

    written = write(workspace, query, tmp_path / "out", "s", "day")

    assert written.rows == count
    names = sorted(path.relative_to(tmp_path / "out") for path in tmp_path.glob("out/**/*.parquet"))
    assert len(names) == written.files
    assert any(str(name).startswith("s=a%2Fb/day=2024-05-01/part-") for name in names)
    assert pq.ParquetFile(tmp_path / "out" / names[0]).schema_arrow.names == ["n", "m"]
    wanted = [(n, s or None, day) for n, s, day in zip(*data.to_pydict().values(), strict=True)]
    assert duckdb_rows(tmp_path / "out") == sorted(wanted, key=str)
    kinds = pa.schema({"s": pa.string(), "day": pa.date32()})
    whole = ds.dataset(tmp_path / "out", partitioning=ds.partitioning(kinds, flavor="hive"))
    assert sorted(whole.to_table()["n"].to_pylist()) == list(range(count))
    assert (tmp_path / "out" / "_SUCCESS").exists()


def test_an_overwrite_replaces_the_folder_whole_and_nothing_is_no_folder(
    opened: tuple[ShuffleWorkspace, mr.Workspace], tmp_path: Path
) -> None:
    workspace, ws = opened
    rows = ws.from_arrow(pa.table({"k": [1, 2, 1], "n": [1, 2, 3]}))
    write(workspace, rows, tmp_path / "out", "k")

    write(workspace, rows.filter("k = 2"), tmp_path / "out", "k", mode="overwrite")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_SUCCESS", "k=2"]

    none = write(workspace, rows.filter("k = 9"), tmp_path / "out", "k", mode="overwrite")
    assert none.files == none.rows == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_SUCCESS"]


def test_a_task_has_few_files_open_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_files, "OPEN_MAX", 3)
    schema = pa.schema({"k": pa.int64(), "n": pa.int64()})
    groups = [pa.table({"k": range(7), "n": range(at, at + 7)}, schema) for at in (0, 10, 20)]

    files = partition_files.by_folders(groups, schema, ["k"], str(tmp_path), "part", "snappy", 10)

    assert len({file.file for file in files}) == len(files) == 21
    by_folder = {f"k={k}": [k, 10 + k, 20 + k] for k in range(7)}
    for folder, wanted in by_folder.items():
        mine = sorted(file.file for file in files if file.folder == folder)
        found = [n for name in mine for n in pq.read_table(tmp_path / name)["n"].to_pylist()]
        assert found == wanted


def test_columns_that_cannot_name_folders_are_refused() -> None:
    schema = pa.schema({"k": pa.int64(), "t": pa.timestamp("us")})
    with pytest.raises(UnsupportedType, match=r"write_parquet\(\): folders cannot be named"):
        check_partition_by("write_parquet()", schema, ["t"])
    with pytest.raises(UserError, match="no column 'x'"):
        parquet_results.check_parquet(schema, "snappy", ("x",))
