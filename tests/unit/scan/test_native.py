"""Files that the engine reads by itself: the same rows as read through Arrow, or not at all."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.config import Config
from millrace.durations import ms
from millrace.engine.duckdb_engine import Engine
from millrace.engine.native_sql import native_query
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
        "f": pa.array([1.5, None, float("-inf")], pa.float32()),
        "u": pa.array([1 << 63, None, 0], pa.uint64()),
        "ns": pa.array([-1, None, 1], pa.timestamp("ns")),
        "ms": pa.array([-1, None, 1], pa.timestamp("ms", "UTC")),
        "ls": pa.array([[{"x": 1}], None, []], pa.list_(pa.struct([("x", pa.int32())]))),
        "ll": pa.array([["a"], None, [None]], pa.large_list(pa.large_string())),
        "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
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
    assert len(inputs) == 3
    assert [piece.rows for piece in native.pieces] == [None], "one scan reads the whole file"
    assert one.equals(two)
    assert one.equals(EVERY_KIND.cast(one.schema))


def test_neighbours_are_read_together_and_a_whole_file_without_row_numbers(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000))})
    source, inputs = opened(tmp_path / "a.parquet", table, row_group_size=100)

    def pieces(*numbers: int) -> list[tuple[int, int] | None]:
        native = native_rows(source.reader(), [inputs[number] for number in numbers])
        assert native is not None
        return [piece.rows for piece in native.pieces]

    assert pieces(*range(10)) == [None]
    assert pieces(*range(9)) == [(0, 899)]
    assert pieces(*range(1, 10)) == [(100, 999)]
    assert pieces(*range(5, 10), *range(5)) == [(500, 999), (0, 499)]
    assert pieces(*range(10), *range(10)) == [None, None]


def test_a_piece_of_a_file_is_read_alone_and_in_order(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(1000))})
    source, inputs = opened(tmp_path / "a.parquet", table, row_group_size=100)

    one, two = run(tmp_path, source, [inputs[7], inputs[2]], "a % 2 = 0")

    assert one.equals(two)
    assert one["a"].to_pylist() == [*range(700, 800, 2), *range(200, 300, 2)]


NAN = float("nan")
FLOATS = [NAN, 0.0, -0.0, 5.0, -5.0, float("inf"), float("-inf"), None]
COMPARED = [
    f"{value} {sign} {other}"
    for value in ("f", "s.x", "l[1]", "m['k']")
    for sign in ("<", "=", "<>", ">=")
    for other in ("5", "7", "'nan'::DOUBLE")
]


def floats(values: list[float | None], kind: pa.DataType) -> pa.Table:
    """The same values as a column, in structs, in lists and in maps."""
    return pa.table(
        {
            "id": range(len(values)),
            "f": pa.array(values, kind),
            "s": pa.array([{"x": v} for v in values], pa.struct([("x", kind)])),
            "l": pa.array([[v] for v in values], pa.list_(kind)),
            "m": pa.array([[("k", v)] for v in values], pa.map_(pa.string(), kind)),
        }
    )


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("pool", [FLOATS, [1.0, NAN], [5.0] * 9 + [NAN], [NAN], [5.0], [None, NAN]])
def test_bounds_that_say_nothing_of_nan_drop_no_row(
    tmp_path: Path, kind: pa.DataType, pool: list[float | None]
) -> None:
    table = floats([pool[n * n % len(pool)] for n in range(24)], kind)
    source, inputs = opened(tmp_path / "a.parquet", table, row_group_size=8)
    rows = native_rows(source.reader(), inputs)
    assert rows is not None
    native = f"({native_query(rows)})"

    with duckdb.connect() as engine:
        engine.register("rows_of_arrow", table)
        for condition in COMPARED:
            asked = "SELECT id FROM {} WHERE " + condition
            answers = [engine.sql(asked.format(r)).fetchall() for r in (native, "rows_of_arrow")]
            assert answers[0] == answers[1], condition
        for value in ("max(f)", "min(f)", "max(s.x)", "count(f)", "max(l[1])"):
            asked = f"SELECT {value}::VARCHAR FROM {{}}"
            answers = [engine.sql(asked.format(r)).fetchall() for r in (native, "rows_of_arrow")]
            assert answers[0] == answers[1], value


@pytest.mark.parametrize("rows", [4, 100])
def test_the_first_rows_of_an_order_come_out_of_chosen_row_groups(
    tmp_path: Path, rows: int
) -> None:
    table = pa.table({"a": range(100), "f": [float(n % 7) for n in range(100)]})
    source, inputs = opened(tmp_path / "a.parquet", table, row_group_size=25)

    first, second = run(tmp_path, source, inputs[:rows], "a > 1 ORDER BY f, a DESC LIMIT 3")

    assert first.equals(second)
    assert first["a"].to_pylist() == [98, 91, 84]


@pytest.mark.parametrize(
    ("column", "fields"),
    [("f", "f"), ("u", "u"), ("ns", "ns"), ("ms", "ms"), ("s", "s.x"), ("l", "l"), ("m", "m")],
)
def test_row_groups_are_left_out_whatever_other_columns_are_read(
    tmp_path: Path, column: str, fields: str
) -> None:
    table = floats([float(n) for n in range(1000)], pa.float64())
    table = table.append_column("u", pa.array(range(1000), pa.uint32()))
    table = table.append_column("ns", pa.array(range(1000), pa.timestamp("ns")))
    table = table.append_column("ms", pa.array(range(1000), pa.timestamp("ms")))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    source = open_source(str(tmp_path / "a.parquet"), Listing(now_ms=0, recent_ms=0))
    inputs = cut(source.shapes, split_bytes_target=1 << 30, map_tasks_max=9)
    rows = native_rows(source.reader(["id", column]), inputs)
    assert rows is not None

    with duckdb.connect() as engine:
        asked = f"EXPLAIN ANALYZE SELECT {fields} FROM ({native_query(rows)}) WHERE id = 250"
        plan = engine.sql(asked).fetchall()[0][1]

    assert "Row Groups Scanned: 1 / 10" in plan
    assert ("s.x" in plan) == (fields == "s.x")


def test_a_double_leaves_out_row_groups_below_its_bounds_and_none_that_may_hold_nan(
    tmp_path: Path,
) -> None:
    pq.write_table(
        pa.table({"f": [float(n) for n in range(1000)]}), tmp_path / "a.parquet", row_group_size=100
    )
    source = open_source(str(tmp_path / "a.parquet"), Listing(now_ms=0, recent_ms=0))
    inputs = cut(source.shapes, split_bytes_target=1 << 30, map_tasks_max=9)
    rows = native_rows(source.reader(), inputs)
    assert rows is not None

    with duckdb.connect() as engine:
        plans = [
            engine.sql(f"EXPLAIN ANALYZE SELECT f FROM ({native_query(rows)}) WHERE {condition}")
            for condition in ("f < 100", "f > 950")
        ]
        below, above = (plan.fetchall()[0][1] for plan in plans)

    assert "Row Groups Scanned: 1 / 10" in below
    assert "Row Groups Scanned: 1 / 10" not in above


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
        pa.table({"a": pa.array([1], pa.duration("us"))}),
        pa.table({"a": pa.array([np.float16(1.5)], pa.float16())}),
        pa.table({"a": pa.array([b"ab"], pa.binary(2))}),
        pa.table({"a": [{"x": 1, "X": 2}]}),
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
