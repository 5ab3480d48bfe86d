"""Rows from Arrow, and to Parquet and the screen."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, functions
from tests.spark.dataset_kit import CONFIGS, CUT_UP, random_table, rows_of
from tests.spark.types_kit import TYPES, in_zone

import millrace as mr
from millrace.datasets.dataset import Dataset
from millrace.errors import StorageError, UserError
from millrace.execute.results import parquet_results
from millrace.execute.results.publish_folder import Draft
from millrace.shuffle.handle import Shuffle

pytestmark = pytest.mark.spark


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark)


@pytest.fixture
def cut_up(spark: SparkSession, tmp_path: Path) -> mr.Workspace:
    return mr.open(tmp_path / "mill", spark, config=CUT_UP)


def ran(dataset: Dataset) -> list[tuple[int, int]]:
    return [(report.ran, report.reused) for report in dataset.run().stages]


# From Arrow.


@pytest.mark.parametrize("config", ["one task", "cut up"])
def test_arrow_rows_are_a_source_like_files(
    spark: SparkSession, tmp_path: Path, config: str
) -> None:
    left, right = random_table(1, 3000, keys=50), random_table(2, 300, keys=60)
    ws = mr.open(tmp_path / "mill", spark, config=CONFIGS[config])

    others = ws.from_arrow(right.to_reader()).select("k", "v AS other")
    joined = ws.from_arrow(left).join(others, on="k")
    mine = joined.group_by("s").agg(n="count(*)", total="sum(other)")

    frames = [spark.createDataFrame(left), spark.createDataFrame(right)]
    both = frames[0].join(frames[1].toDF("k", "s2", "f2", "v2"), "k").groupBy("s")
    theirs = both.agg(functions.count("*").alias("n"), functions.sum("v2").alias("total"))
    assert rows_of(mine.to_arrow()) == rows_of(theirs.toArrow())


def test_work_over_equal_arrow_rows_is_reused(ws: mr.Workspace) -> None:
    table = random_table(3, 500, keys=5)

    def total(rows: pa.Table) -> Dataset:
        return ws.from_arrow(rows).agg(total="sum(v)")

    assert ran(total(table)) == [(1, 0)]
    again = pa.concat_tables([table.slice(0, 100), table.slice(100)])
    assert ran(total(again)) == [(0, 1)]
    assert ran(total(table.slice(1))) == [(1, 0)]
    found = ws.from_arrow(TYPES).to_arrow()
    assert found.schema == TYPES.schema
    assert rows_of(found) == rows_of(TYPES)


# To Parquet.


def test_parquet_is_read_alike_by_spark_and_arrow(
    spark: SparkSession, cut_up: mr.Workspace, tmp_path: Path
) -> None:
    table = random_table(7, 4000, keys=300)
    query = cut_up.from_arrow(table).sort("v", "k", "s", "f")
    out = tmp_path / "deep" / "out"

    written = query.write_parquet(out)

    names = sorted(os.listdir(out))
    assert names == ["_SUCCESS", *(f"part-{n:05}.parquet" for n in range(written.files))]
    assert written.files > 1
    assert (written.rows, written.path) == (4000, str(out))
    assert written.bytes == sum(path.stat().st_size for path in out.glob("*.parquet"))
    assert os.listdir(out.parent) == ["out"]
    expected = query.to_arrow()
    assert repr(pq.read_table(out).to_pylist()) == repr(expected.to_pylist())
    assert rows_of(spark.read.parquet(str(out)).toArrow()) == rows_of(expected)
    assert cut_up.read_parquet(out).count() == 4000


@pytest.mark.parametrize("compression", parquet_results.COMPRESSIONS)
def test_types_and_compressions(
    spark: SparkSession, ws: mr.Workspace, tmp_path: Path, compression: str
) -> None:
    ws.from_arrow(TYPES).write_parquet(tmp_path / "out", compression=compression)

    (file,) = (tmp_path / "out").glob("*.parquet")
    used = pq.ParquetFile(file).metadata.row_group(0).column(0).compression
    assert used == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert pq.read_table(tmp_path / "out").schema == TYPES.schema
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(TYPES)
    theirs = spark.read.parquet(str(tmp_path / "out")).toArrow()
    assert rows_of(theirs.cast(TYPES.schema)) == rows_of(TYPES)


def test_a_target_with_content_is_refused_before_work_and_replaced_if_asked(
    ws: mr.Workspace, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first, second = (ws.from_arrow(pa.table({"a": [n]})) for n in (1, 2))
    first.write_parquet(out)
    (out / "more").write_text("")
    before = ws.runs()

    with pytest.raises(UserError, match="exists already"):
        second.write_parquet(out)
    with pytest.raises(UserError, match="mode is 'append'"):
        second.write_parquet(out, mode="append")
    with pytest.raises(UserError, match="compression is 'zip'"):
        second.write_parquet(out, "overwrite", compression="zip")
    assert ws.runs() == before
    assert pq.read_table(out / "part-00000.parquet")["a"].to_pylist() == [1]

    second.write_parquet(out, mode="overwrite")
    assert sorted(os.listdir(out)) == ["_SUCCESS", "part-00000.parquet"]
    assert pq.read_table(out)["a"].to_pylist() == [2]
    # A query may read what it replaces.
    ws.read_parquet(out).select("a + 1 AS a").write_parquet(out, mode="overwrite")
    assert pq.read_table(out)["a"].to_pylist() == [3]


def test_no_rows_still_have_columns(spark: SparkSession, ws: mr.Workspace, tmp_path: Path) -> None:
    written = ws.from_arrow(TYPES).filter("i32 > 100").write_parquet(tmp_path / "out")

    assert (written.files, written.rows) == (1, 0)
    assert pq.read_table(tmp_path / "out").schema == TYPES.schema
    assert spark.read.parquet(str(tmp_path / "out")).columns == TYPES.column_names


def test_row_groups_are_of_the_size_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    config = mr.Config().with_options(parquet_row_group_bytes=100_000, batch_bytes_target=20_000)
    ws = mr.open(tmp_path / "mill", spark, config=config)

    ws.from_arrow(pa.table({"a": np.arange(100_000)})).write_parquet(tmp_path / "out")

    groups = pq.ParquetFile(tmp_path / "out" / "part-00000.parquet").metadata.num_row_groups
    assert 4 <= groups <= 8


def test_what_is_lost_while_it_is_written_is_made_again(
    ws: mr.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = ws.from_arrow(random_table(8, 1000, keys=9)).group_by("k").agg(n="count(*)")
    real = parquet_results.publish_files
    tries = []

    def damaged(*args: object) -> object:
        answer = args[3]
        assert isinstance(answer, Shuffle)
        tries.append(answer)
        if len(tries) == 1:
            for file in Path(ws.path, "shuffle", str(answer.query_id)).rglob("data.ipc"):
                file.unlink()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_results, "publish_files", damaged)
    written = query.write_parquet(tmp_path / "out")

    assert (len(tries), written.rows) == (2, 10)
    assert rows_of(pq.read_table(tmp_path / "out")) == rows_of(query.to_arrow())


def test_a_folder_that_tasks_cannot_write_to_is_a_clear_error(
    ws: mr.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = parquet_results.target_in

    def elsewhere(*args: object) -> object:
        draft = args[0]
        assert isinstance(draft, Draft)
        os.rmdir(draft.tasks)  # As on a host that does not share the disk.
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(parquet_results, "target_in", elsewhere)
    with pytest.raises(
        StorageError, match="is not there on host .*\n.*a disk that all hosts share"
    ):
        ws.from_arrow(TYPES).write_parquet(tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["mill"]


# To the screen.


def test_show_prints_what_sparks_show_prints(
    spark: SparkSession, ws: mr.Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    def same(table: pa.Table, *args: int) -> None:
        mine = ws.from_arrow(table)
        frame = mine.to_spark()
        capsys.readouterr()
        mine.show(*args)  # type: ignore[arg-type]
        found = capsys.readouterr().out
        frame.show(*args)  # type: ignore[arg-type]
        assert found == capsys.readouterr().out

    wide = pa.table({"n": range(25), "text": ["a long text of more than twenty letters"] * 25})
    same(wide)
    same(wide, 25, False)  # noqa: FBT003 - as Spark's own
    same(wide, 1, 7)
    same(TYPES)
    in_zone(spark, "America/New_York", lambda: same(TYPES))
    same(TYPES.slice(0, 0))
    with pytest.raises(UserError, match=r"show\(-1\)"):
        ws.from_arrow(TYPES).show(-1)
