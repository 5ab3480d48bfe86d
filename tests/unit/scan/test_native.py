"""Files that the engine reads by itself: the same rows as read through Arrow, or not at all."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.config import Config
from millrace.durations import ms
from millrace.engine.duckdb_engine import Engine
from millrace.engine.task_inputs import TaskInput
from millrace.errors import UserError
from millrace.scan.engine_parquet import native_rows
from millrace.scan.source import FileSource, Listing, open_source
from millrace.scan.splits import MapInput, cut

EVERY_KIND = pa.table(
    {
        "b": [True, None, False],
        "i": pa.array([1, None, -3], pa.int8()),
        "l": [1 << 60, None, -(1 << 60)],
        "s": ["ä", None, ""],
        "x": [b"\\0", None, b""],
        "d": [date(1582, 10, 3), None, date(9999, 12, 31)],
        "t": pa.array([-62_135_596_800_000_000, None, 1], pa.timestamp("us")),
        "z": pa.array([-2_208_988_800_000_001, None, 1], pa.timestamp("us", "UTC")),
        "n": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(9, 2)),
        "w": pa.array([Decimal(10**30), None, Decimal(-1)], pa.decimal128(38, 0)),
    }
)


def opened(path: Path, table: pa.Table, **options: int) -> tuple[FileSource, list[MapInput]]:
    pq.write_table(table, path, **options)
    source = open_source(str(path), Listing(now_ms=0, recent_ms=ms(Config().recent_change)))
    return source, cut(source.shapes, split_bytes_target=1, map_tasks_max=100)


def run(tmp_path: Path, source: FileSource, inputs: list[MapInput], where: str) -> list[Any]:
    """Rows as the engine reads them by itself, and through Arrow."""
    reader = source.reader()
    rows = [batch for one in inputs for batch in reader.batches(one, 1 << 20)]
    stream = TaskInput(lambda: pa.RecordBatchReader.from_batches(reader.schema, rows))
    native = TaskInput(stream.stream, lambda: native_rows(reader, inputs))
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path), time_zone="UTC")
    sql = f"SELECT * FROM input_0 WHERE {where}"
    return [
        pa.Table.from_batches(engine.run(sql, {"input_0": one}, reader.schema), reader.schema)
        for one in (native, stream)
    ]


def test_every_kind_of_value_is_the_same_either_way(tmp_path: Path) -> None:
    source, inputs = opened(tmp_path / "a.parquet", EVERY_KIND, row_group_size=1)

    native = native_rows(source.reader(), inputs)
    one, two = run(tmp_path, source, inputs, "true")

    assert native is not None
    assert len(inputs) == len(native.pieces) == 3
    assert one.equals(two)
    assert one.equals(EVERY_KIND.cast(one.schema))


def test_a_piece_of_a_file_is_read_alone_and_in_order(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000))})
    source, inputs = opened(tmp_path / "a.parquet", table, row_group_size=100)

    one, two = run(tmp_path, source, [inputs[7], inputs[2]], "a % 2 = 0")

    assert one.equals(two)
    assert one["a"].to_pylist() == [*range(700, 800, 2), *range(200, 300, 2)]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_are_not_left_to_bounds_that_say_nothing_of_nan(
    tmp_path: Path, kind: pa.DataType
) -> None:
    table = pa.table({"f": pa.array([1.0, float("nan")], kind)})
    source, inputs = opened(tmp_path / "a.parquet", table)

    assert native_rows(source.reader(), inputs) is None
    for found in run(tmp_path, source, inputs, "f > 5"):
        assert found.num_rows == 1


def test_a_float_that_is_not_read_does_not_matter(tmp_path: Path) -> None:
    table = pa.table({"f": [1.0, float("nan")], "a": [1, 2]})
    source, inputs = opened(tmp_path / "a.parquet", table)

    assert native_rows(source.reader(["a"]), inputs) is not None


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.binary_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_how_a_writer_held_texts_in_memory_does_not_matter(
    tmp_path: Path, kind: pa.DataType
) -> None:
    table = pa.table({"t": pa.array(["a", "b", None, "a"], pa.string()).cast(kind)})
    source, inputs = opened(tmp_path / "a.parquet", table)

    assert native_rows(source.reader(), inputs) is not None
    one, two = run(tmp_path, source, inputs, "t IS NULL OR t = 'a'")
    assert one.equals(two)
    assert one.num_rows == 3


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"a": [1], "A": [2]}),
        pa.table({"a": pa.array([1], pa.timestamp("ns"))}),
        pa.table({"a": [[1]]}),
        pa.table({"a": pa.array([1], pa.uint32())}),
    ],
)
def test_what_the_engine_reads_otherwise_is_left_to_arrow(tmp_path: Path, table: pa.Table) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    source = open_source(str(tmp_path / "a.parquet"), Listing(now_ms=0, recent_ms=0))

    assert (
        native_rows(source.reader(), cut(source.shapes, split_bytes_target=1, map_tasks_max=9))
        is None
    )


def test_a_name_that_is_a_pattern_is_left_to_arrow(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]"
    folder.mkdir()
    source, inputs = opened(folder / "a.parquet", pa.table({"a": [1]}))

    assert native_rows(source.reader(), inputs) is None


def test_a_quote_in_a_name_is_part_of_it(tmp_path: Path) -> None:
    source, inputs = opened(tmp_path / "it's.parquet", pa.table({'a"b': [1, 2]}))

    one, two = run(tmp_path, source, inputs, "true")

    assert one.equals(two)
    assert one.num_rows == 2


def test_a_file_that_changed_is_an_error(tmp_path: Path) -> None:
    source, inputs = opened(tmp_path / "a.parquet", pa.table({"a": [1]}))
    pq.write_table(pa.table({"a": list(range(1000))}), tmp_path / "a.parquet")
    reader = source.reader()
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path), time_zone="UTC")
    rows = TaskInput(lambda: pytest.fail("not as Arrow"), lambda: native_rows(reader, inputs))

    with pytest.raises(UserError, match="changed while it was being read"):
        list(engine.run("SELECT * FROM input_0", {"input_0": rows}, reader.schema))
