"""The guess of rows per group comes near what is there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.scan.group_estimate import estimate_groups, expected_distinct, population
from millrace.scan.source import Listing, open_source

LISTING = Listing(now_ms=0, recent_ms=0)


def rows_of_group(folder: Path) -> float | None:
    found = estimate_groups(open_source(str(folder), LISTING), ["k"], 1 << 30)
    return None if found is None else found.rows_per_group


@pytest.mark.parametrize(("hot", "share"), [(0, 0.0), (1_000, 0.01), (40_000, 0.4)])
def test_the_share_of_the_most_frequent_key_is_seen(tmp_path: Path, hot: int, share: float) -> None:
    keys = np.where(np.arange(100_000) % 100_000 < hot, -1, np.arange(100_000))
    np.random.default_rng(3).shuffle(keys)
    pq.write_table(pa.table({"k": keys}), tmp_path / "a.parquet")

    found = estimate_groups(open_source(str(tmp_path), LISTING), ["k"], 1 << 30)

    assert found is not None
    assert found.largest_share == pytest.approx(share, rel=0.2)


@pytest.mark.parametrize(("values", "expected"), [(10, 20_000), (50_000, 4.07), (5_000_000, 1.02)])
def test_the_guess_is_near_what_is_there(tmp_path: Path, values: int, expected: float) -> None:
    random = np.random.default_rng(values)
    table = pa.table({"k": random.integers(0, values, 200_000), "v": range(200_000)})
    pq.write_table(table, tmp_path / "a.parquet")
    there = 200_000 / len(np.unique(table["k"].to_numpy()))

    found = rows_of_group(tmp_path)

    assert found == pytest.approx(there, rel=0.1)
    assert found == pytest.approx(expected, rel=0.1)


def test_no_value_twice_means_a_row_to_a_group(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": range(1000)}), tmp_path / "a.parquet")

    assert rows_of_group(tmp_path) == 1.0


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"k": pa.array([], pa.int64())}),
        pa.table({"k": pa.array([None, None], pa.int64())}),
    ],
)
def test_empty_files_and_nulls_are_no_trouble(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "a.parquet")

    found = rows_of_group(tmp_path)

    assert found == (2.0 if table.num_rows else None)


def test_text_files_do_not_tell(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k\n1\n2\n")

    assert rows_of_group(tmp_path) is None


@pytest.mark.parametrize(
    ("values", "drawn"), [(1.0, 10), (5.0, 10), (1.0, 10_000), (1e3, 10_000), (1e6, 10_000)]
)
def test_the_population_undoes_the_expectation(values: float, drawn: int) -> None:
    seen = expected_distinct(values, drawn)

    assert drawn - seen > 1, "each row has a value of its own: nothing can be said"
    assert expected_distinct(population(round(seen), drawn), drawn) == pytest.approx(seen, abs=1)


def test_where_each_row_has_a_value_of_its_own_there_are_any_number_of_them() -> None:
    assert population(10, 10) == math.inf
    assert expected_distinct(math.inf, 10) == 10
