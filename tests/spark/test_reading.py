"""Small partitions are read together and skewed ones in parts; the answers stay the same."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.datasets.dataset import Dataset

pytestmark = pytest.mark.spark
FILES = 4
EACH_ALONE = mr.Config().with_options(
    one_task_bytes_max=1,
    broadcast_bytes_max=1,
    partition_bytes_target=30_000,
    read_together_bytes_max=1,
)
TOGETHER = EACH_ALONE.with_options(read_together_bytes_max=50_000)
SPLIT = EACH_ALONE.with_options(skew_bytes_min=1, skew_factor=2, partition_bytes_target=20_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most rows of the left side have the key 7; both sides have nulls and keys of their own."""
    folder = tmp_path_factory.mktemp("in")
    random = np.random.default_rng(5)
    for name, keys, rows in (("left", 300, 2500), ("right", 320, 60)):
        (folder / name).mkdir()
        for number in range(FILES):
            drawn = random.integers(0, keys, rows)
            if name == "left":
                drawn[: rows * 3 // 4] = 7
            k = pa.array(drawn, pa.int64(), mask=random.random(rows) < 0.02)
            v = pa.array(random.integers(0, 1 << 40, rows))
            pq.write_table(pa.table({"k": k, name[0]: v}), folder / name / f"{number}.parquet")
    return folder


def joined(ws: mr.Workspace, folder: Path, how: str) -> Dataset:
    left, right = ws.read_parquet(folder / "left"), ws.read_parquet(folder / "right")
    return left.join(right, on="k", how=how)


def rows_of(found: list[tuple[object, ...]]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(repr, row)) for row in found)


def expected(folder: Path, how: str, select: str = "*") -> list[tuple[str, ...]]:
    sql = f"FROM '{folder}/left/*.parquet' {how} JOIN '{folder}/right/*.parquet' USING (k)"
    return rows_of(duckdb.connect().execute(f"SELECT {select} {sql}").fetchall())


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_every_join_has_the_same_rows_however_it_is_read(
    spark: SparkSession, folder: Path, tmp_path: Path, how: str
) -> None:
    wanted = expected(folder, how)
    split = []
    for number, config in enumerate((TOGETHER, SPLIT)):
        ws = mr.open(tmp_path / f"mill{number}", spark, config=config)
        query = joined(ws, folder, how)
        report = query.run().stages[-1]
        found = rows_of([tuple(row.values()) for row in query.to_arrow().to_pylist()])
        assert found == wanted
        split.append("skewed" in str(report))
        assert ("are small" in str(report)) == (config is TOGETHER)

    # The left side is skewed, which a right join does not keep.
    assert split == [False, how not in ("right", "full")]


@pytest.mark.parametrize("config", [TOGETHER, SPLIT], ids=["together", "split"])
def test_groups_above_a_join_are_right_whether_they_need_an_exchange_or_not(
    spark: SparkSession, folder: Path, tmp_path: Path, config: mr.Config
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=config)
    both = joined(ws, folder, "inner")
    by_key = both.group_by("k").agg(n="count(*)", top="max(l)")
    by_rest = both.with_columns(g="k % 3").group_by("g").agg(low="min(l)", top="max(r)")

    found_by_key = [tuple(row.values()) for row in by_key.to_arrow().to_pylist()]
    found_by_rest = [tuple(row.values()) for row in by_rest.to_arrow().to_pylist()]

    sql = f"FROM '{folder}/left/*.parquet' JOIN '{folder}/right/*.parquet' USING (k) GROUP BY 1"
    with duckdb.connect() as engine:
        keys = engine.execute(f"SELECT k, count(*), max(l) {sql}").fetchall()
        rest = engine.execute(f"SELECT k % 3, min(l), max(r) {sql}").fetchall()
    assert rows_of(found_by_key) == rows_of(keys)
    assert rows_of(found_by_rest) == rows_of(rest)
    # The groups by key are made where the join is: there a split would make two of one.
    assert not any("skewed" in str(report) for report in by_key.run().stages)
    assert any("skewed" in str(report) for report in by_rest.run().stages) == (config is SPLIT)


def test_the_same_choice_is_made_again_and_recorded(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=SPLIT)
    first = joined(ws, folder, "inner").run().stages

    again = joined(mr.open(tmp_path / "mill", spark, config=SPLIT), folder, "inner").run().stages

    assert [report.ran for report in again] == [0, 0, 0]
    assert [report.notes for report in again] == [report.notes for report in first]
    recorded = ws.open_shuffle(ws.runs()[-1].query_id, 2).manifest.choices
    assert recorded == {"reading": list(first[2].notes)}
    assert any("skewed" in note for note in first[2].notes)


def test_partitions_that_were_asked_for_are_left_as_they_are(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    ws = mr.open(tmp_path / "mill", spark, config=TOGETHER)
    data = ws.read_parquet(folder / "right")

    reports = data.repartition(5, "k").select("r").run().stages

    assert reports[-1].map_tasks == 5
    assert reports[-1].notes == ()


def test_what_follows_few_rows_is_done_in_one_task_and_reused(
    spark: SparkSession, tmp_path: Path, folder: Path
) -> None:
    few = EACH_ALONE.with_options(one_task_bytes_max=60_000, read_together_bytes_max=60_000)
    select = "SELECT k % 5 AS f, sum(l)::HUGEINT, count(*)"
    sql = f"{select} FROM '{folder}/left/*.parquet' GROUP BY f ORDER BY f DESC NULLS LAST"

    def query(ws: mr.Workspace) -> Dataset:
        left = ws.read_parquet(folder / "left").with_columns(f="k % 5")
        return left.group_by("f").agg(s="sum(l)", n="count(*)").sort("f DESC NULLS LAST")

    with mr.open(tmp_path / "mill", spark, config=few) as ws:
        ran = [report.ran for report in query(ws).run().stages]
        rows = [tuple(row.values()) for row in query(ws).to_arrow().to_pylist()]
        again = [report.ran for report in query(ws).run().stages]
        explained = query(ws).explain()

    assert ran == [FILES, 0, 0, 1]
    assert rows == duckdb.connect().execute(sql).fetchall()
    assert again == [0, 0, 0, 0]
    assert "left out: its rows are few and made in stage 3" in explained
