"""Whatever changes the rows of a dataset leads to new work, and to the new answer."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.execute import stage_tasks
from millrace.execute.map_task import MapStage
from millrace.identity.versions import versions

pytestmark = pytest.mark.spark
FILES = 3
SCHEMA = pa.schema({"w": pa.int64()})
CONFIG = mr.Config().with_options(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=2_000, recent_change=0.001
)
Rows = list[tuple[object, ...]]


def write(path: Path, first: int) -> None:
    """A file of 100 rows; always of the same size, whatever number it starts with."""
    values = pa.array(range(first, first + 100), pa.int64())
    keys = pa.array([value % 10 for value in range(100)], pa.int64())
    pq.write_table(
        pa.table({"k": keys, "v": values}), path, compression="none", use_dictionary=False
    )
    long_ago = 1_700_000_000
    os.utime(path, (long_ago, long_ago))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        write(folder / f"m{number}.parquet", 1000 * number)
    return folder


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, config=CONFIG)


def totals(ws: mr.Workspace, folder: Path) -> Dataset:
    return ws.read_parquet(folder).group_by("k").agg(total="sum(v)", n="count(*)")


def answer(query: Dataset) -> tuple[Rows, list[int]]:
    """The rows, and how many tasks each stage had to run for them."""
    ran = [report.ran for report in query.run().stages]
    return sorted(tuple(row.values()) for row in query.to_arrow().to_pylist()), ran


def expected(folder: Path) -> Rows:
    query = f"SELECT k, sum(v)::BIGINT, count(*) FROM '{folder}/*.parquet' GROUP BY k ORDER BY k"
    return duckdb.connect().execute(query).fetchall()


def same_size_and_time(folder: Path) -> None:
    path = folder / "m1.parquet"
    before = path.stat()
    write(path, 7000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def edited_in_place(folder: Path) -> None:
    path = folder / "m1.parquet"
    before = path.stat()
    data = path.read_bytes()
    write(folder / "other", 7000)
    with open(path, "r+b") as file:
        file.write((folder / "other").read_bytes())
    (folder / "other").unlink()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_ino) == (len(data), before.st_ino)


def names_exchanged(folder: Path) -> None:
    (folder / "m0.parquet").rename(folder / "spare")
    (folder / "m1.parquet").rename(folder / "m0.parquet")
    (folder / "spare").rename(folder / "m1.parquet")
    write(folder / "m2.parquet", 9000)


def a_new_file_sorted_first(folder: Path) -> None:
    write(folder / "a.parquet", 5000)


def a_file_removed(folder: Path) -> None:
    (folder / "m0.parquet").unlink()


@pytest.mark.parametrize(
    ("change", "scans"),
    [
        (same_size_and_time, 1),
        (edited_in_place, 1),
        (names_exchanged, 3),
        (a_new_file_sorted_first, 1),
        (a_file_removed, 0),
    ],
)
def test_changed_files_are_read_again_and_no_others(
    spark: SparkSession, folder: Path, change: Callable[[Path], None], scans: int
) -> None:
    config = CONFIG.with_options(partition_bytes_target=1 << 20)  # The same count for all sizes.
    ws = mr.open(folder.with_name("mill"), spark, config=config)
    first, _ = answer(totals(ws, folder))
    assert first == expected(folder)

    change(folder)
    second, ran = answer(totals(ws, folder))

    assert second == expected(folder)
    assert second != first
    assert ran[0] == scans
    assert ran[1] > 0


def test_rows_named_by_a_version_are_asked_again_under_other_settings(
    spark: SparkSession, ws: mr.Workspace
) -> None:
    frame = spark.sql("SELECT id, try_cast(id AS string) AS s FROM range(3)")
    ws.from_spark(frame, version="three").count()
    again = ws.from_spark(frame, version="three").run().stages
    spark.conf.set("spark.sql.legacy.sizeOfNull", "false")
    try:
        other = ws.from_spark(frame, version="three").run().stages
    finally:
        spark.conf.unset("spark.sql.legacy.sizeOfNull")

    assert again[0].reused == again[0].map_tasks
    assert other[0].reused == 0


def test_another_session_time_zone_is_other_work(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    times = [datetime(2024, 5, 1, hour, tzinfo=UTC) for hour in range(24)]
    pq.write_table(pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))}), path)
    ws = mr.open(tmp_path / "mill", spark, config=CONFIG)
    days = ws.read_parquet(path).select("day(t) AS d").group_by("d").agg(n="count(*)")
    zone = spark.conf.get("spark.sql.session.timeZone")
    found = {}
    try:
        for name in ("UTC", "Asia/Tokyo", "America/New_York"):
            spark.conf.set("spark.sql.session.timeZone", name)
            theirs = spark.read.parquet(str(path)).selectExpr("day(t) AS d").groupBy("d").count()
            rows, ran = answer(days)
            assert rows == sorted(tuple(row) for row in theirs.collect()), name
            assert ran[0] == 1
            found[name] = rows
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")

    assert len({str(rows) for rows in found.values()}) == 3


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the driver take the version of a library for another one; the tasks do not look."""
    real = versions()

    def change(library: str) -> None:
        monkeypatch.setattr(stage_tasks, "versions", lambda: {**real, library: "99.0"})
        monkeypatch.setattr(
            stage_tasks, "MapStage", lambda **given: MapStage(**{**given, "versions": real})
        )

    return change


@pytest.mark.parametrize("library", ["millrace", "pyarrow", "numpy"])
def test_another_version_of_a_library_is_other_work(
    ws: mr.Workspace, folder: Path, others: Callable[[str], None], library: str
) -> None:
    first, _ = answer(totals(ws, folder))

    others(library)
    second, ran = answer(totals(ws, folder))

    assert ran[0] == FILES
    assert second == first == expected(folder)


def test_another_version_of_the_engine_is_other_work(
    ws: mr.Workspace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(totals(ws, folder))

    monkeypatch.setattr(stage_tasks, "engine_version", lambda: "99.0")
    reports = totals(ws, folder).run().stages

    assert reports[0].ran == FILES
    assert "duckdb" in str(reports[0])


@pytest.mark.parametrize(
    "other",
    [
        lambda data: data.filter("v > 1050").group_by("k").agg(total="sum(v)", n="count(*)"),
        lambda data: data.filter("v > 1051").group_by("k").agg(total="sum(v)", n="count(*)"),
        lambda data: data.group_by("k").agg(total="sum(v)", n="count(DISTINCT v % 3)"),
        lambda data: data.group_by("k").agg(total="max(v)", n="count(*)"),
        lambda data: data.with_columns(v="v + 1").group_by("k").agg(total="sum(v)", n="count(*)"),
        lambda data: data.with_columns(k="k % 5").group_by("k").agg(total="sum(v)", n="count(*)"),
    ],
    ids=["filter", "another filter", "distinct", "max", "other values", "other keys"],
)
def test_another_query_over_the_same_files_never_takes_this_ones_answer(
    ws: mr.Workspace, folder: Path, other: Callable[[Dataset], Dataset], spark: SparkSession
) -> None:
    first, _ = answer(totals(ws, folder))
    answer(ws.read_parquet(folder).filter("v > 1049").group_by("k").agg(total="sum(v)"))
    alone = mr.open(Path(ws.path).parent / "alone", spark)

    second, ran = answer(other(ws.read_parquet(folder)))

    assert second != first
    assert second == answer(other(alone.read_parquet(folder)))[0]
    assert ran[0] == FILES


def test_the_same_bytes_read_as_other_types_are_other_work(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("a;b\n1;10\n1;10\n01;9\n")
    ws = mr.open(tmp_path / "mill", spark, config=CONFIG)
    texts = pa.schema([("a", pa.string()), ("b", pa.string())])
    numbers = pa.schema([("a", pa.int64()), ("b", pa.int64())])

    def groups(schema: pa.Schema, *, header: bool = True) -> Rows:
        data = ws.read_csv(path, schema=schema, delimiter=";", header=header)
        return answer(data.group_by("a").agg(top="max(b)"))[0]

    assert groups(texts) == [("01", "9"), ("1", "10")]
    assert groups(numbers) == [(1, 10)]
    assert groups(texts, header=False) == [("01", "9"), ("1", "10"), ("a", "b")]
    assert groups(texts) == [("01", "9"), ("1", "10")]


def test_equal_files_in_another_folder_are_told_apart(ws: mr.Workspace, folder: Path) -> None:
    answer(totals(ws, folder))
    there = folder.with_name("there")
    there.mkdir()
    for number in range(FILES):
        write(there / f"m{number}.parquet", 1000 * number + (number == 1))

    rows, ran = answer(totals(ws, there))

    assert rows == expected(there)
    assert ran[0] == FILES


def test_a_function_that_reads_another_global_is_other_work(ws: mr.Workspace, folder: Path) -> None:
    names: dict[str, Any] = {"pa": pa, "pc": pc, "LIFT": 1, "__name__": "__main__"}
    code = 'def lifted(batch):\n    return pa.record_batch({"w": pc.add(batch["v"], LIFT)})\n'
    exec(code, names)  # noqa: S102 - as in a notebook, where the global is set in another cell

    def query() -> list[int]:
        rows = ws.read_parquet(str(folder))
        lifted = rows.map_batches(names["lifted"], SCHEMA)
        return sorted(lifted.to_arrow()["w"].to_pylist())

    before = query()
    names["LIFT"] = 100

    assert query() == [value + 99 for value in before]


def test_a_helper_edited_in_another_module_is_other_work(
    ws: mr.Workspace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lifting.py").write_text("def lift(value):\n    return value + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    lifting = importlib.import_module("lifting")
    cloudpickle.register_pickle_by_value(lifting)  # type: ignore[no-untyped-call]

    def helped(batch: pa.RecordBatch) -> pa.RecordBatch:
        one = lifting.lift(0)
        return pa.record_batch({"w": pc.add(batch["v"], one)})

    def query() -> list[int]:
        rows = ws.read_parquet(str(folder))
        return sorted(rows.map_batches(helped, SCHEMA).to_arrow()["w"].to_pylist())

    before = query()
    (tmp_path / "lifting.py").write_text("def lift(value):\n    return value + 100\n")
    importlib.invalidate_caches()
    importlib.reload(lifting)
    after = query()
    cloudpickle.unregister_pickle_by_value(lifting)  # type: ignore[no-untyped-call]

    assert after == [value + 99 for value in before]
