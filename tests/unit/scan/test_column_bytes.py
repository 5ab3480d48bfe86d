"""What columns weigh: a plan is cut by the bytes of what it reads, not of whole files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.scan.source import Listing, open_source

LISTING = Listing(now_ms=0, recent_ms=0)


def test_a_columns_bytes_are_those_in_the_file(tmp_path: Path) -> None:
    table = pa.table({"small": [1] * 10_000, "large": [f"{i:0100}" for i in range(10_000)]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet")

    source = open_source(str(tmp_path), LISTING)

    assert source.bytes_of(["large"]) > 0.9 * source.bytes
    assert source.bytes_of(["small"]) < 0.1 * source.bytes
    assert abs(source.bytes_of(["small", "large"]) - source.bytes) <= 4


def test_where_the_format_does_not_tell_columns_are_taken_to_be_even(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 100)

    source = open_source(str(tmp_path / "a.csv"), LISTING)

    assert source.bytes_of(["a"]) == source.bytes // 2


def test_nested_columns_count_with_all_their_parts(tmp_path: Path) -> None:
    table = pa.table({"n": [{"x": i, "y": "y" * 100} for i in range(1000)], "a": range(1000)})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)

    source = open_source(str(tmp_path / "a.parquet"), LISTING)

    assert source.bytes_of(["n"]) > 0.8 * source.bytes
