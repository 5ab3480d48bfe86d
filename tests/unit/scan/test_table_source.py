"""Files of a table: their columns become the table's, and rows that it deleted are left out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.engine.duckdb_engine import Engine
from millrace.engine.task_inputs import TaskInput
from millrace.errors import UserError
from millrace.scan.engine_parquet import native_rows
from millrace.scan.file_mapping import FIELD_ID, FieldIds, TableField
from millrace.scan.source import FileSource
from millrace.scan.splits import cut
from millrace.scan.table_source import SnapshotFile, table_source


def field(name: str, kind: pa.DataType, number: int, *parts: TableField, **more: Any) -> TableField:  # noqa: ANN401
    return TableField(name=name, type=kind, id=number, parts=parts, **more)


def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(number).encode()})


@dataclass(frozen=True)
class Deleted:
    """Rows at these positions."""

    numbers: tuple[int, ...]

    def identity(self) -> list[Any]:
        return list(self.numbers)

    def positions(self) -> npt.NDArray[np.int64]:
        return np.array(self.numbers, np.int64)


def written(path: Path, columns: list[tuple[pa.Field, list[Any]]], **options: int) -> SnapshotFile:
    arrays = [pa.array(values, column.type) for column, values in columns]
    table = pa.Table.from_arrays(arrays, schema=pa.schema([column for column, _ in columns]))
    pq.write_table(table, path, **options)
    return SnapshotFile(path=str(path))


def rows_of(
    tmp_path: Path, source: FileSource, columns: list[str] | None = None, split_bytes: int = 1
) -> pa.Table:
    """The rows, which are the same through Arrow as read by the engine, where it reads them."""
    inputs = cut(source.shapes, split_bytes_target=split_bytes, map_tasks_max=100)
    reader = source.reader(columns)
    rows = [batch for one in inputs for batch in reader.batches(one, 1 << 20)]
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path), time_zone="UTC")
    stream = TaskInput(
        lambda: pa.RecordBatchReader.from_batches(reader.schema, rows),
        lambda: native_rows(reader, inputs),
    )
    named = {"input_0": stream}
    there = list(engine.run("SELECT * FROM input_0", named, reader.schema))
    table = pa.Table.from_batches(rows, reader.schema)
    assert pa.Table.from_batches(there, reader.schema).equals(table)
    return table


def is_native(source: FileSource) -> bool:
    inputs = cut(source.shapes, split_bytes_target=1, map_tasks_max=100)
    return native_rows(source.reader(), inputs) is not None


def open_table(
    files: list[SnapshotFile], *fields: TableField, ids: FieldIds = "always"
) -> FileSource:
    return table_source(files, fields, ids=ids)


def test_columns_are_found_by_their_ids_whatever_their_names(tmp_path: Path) -> None:
    old = written(
        tmp_path / "old.parquet",
        [
            (with_id("a", pa.int32(), 1), [1, None]),
            (with_id("b", pa.string(), 2), ["x", "y"]),
            (with_id("gone", pa.float64(), 3), [0.5, 1.5]),
        ],
    )
    new = written(
        tmp_path / "new.parquet",
        [
            (with_id("a", pa.string(), 2), ["z"]),
            (with_id("b", pa.int64(), 1), [1 << 40]),
            (with_id("gone", pa.float32(), 4), [2.5]),
        ],
    )
    fields = (
        field("gone", pa.float64(), 4),
        field("b", pa.int64(), 1),
        field("a", pa.string(), 2),
        field("day", pa.date32(), 9),
    )

    source = open_table([old, new], *fields)
    rows = rows_of(tmp_path, source)

    assert is_native(source)
    assert rows.to_pydict() == {
        "gone": [None, None, 2.5],
        "b": [1, None, 1 << 40],
        "a": ["x", "y", "z"],
        "day": [None] * 3,
    }
    assert rows_of(tmp_path, source, ["day"]).num_rows == 3


def test_values_become_those_of_wider_types(tmp_path: Path) -> None:
    moment = datetime(2024, 5, 1, 12)  # noqa: DTZ001 - as files have it
    file = written(
        tmp_path / "a.parquet",
        [
            (with_id("i", pa.int32(), 1), [-5]),
            (with_id("f", pa.float32(), 2), [0.1]),
            (with_id("n", pa.decimal128(5, 2), 3), [Decimal("123.45")]),
            (with_id("t", pa.timestamp("ms"), 4), [moment]),
            (with_id("d", pa.date32(), 5), [moment.date()]),
            (with_id("s", pa.large_string(), 6), ["ä"]),
        ],
    )

    rows = rows_of(
        tmp_path,
        open_table(
            [file],
            field("i", pa.int64(), 1),
            field("f", pa.float64(), 2),
            field("n", pa.decimal128(20, 2), 3),
            field("t", pa.timestamp("us", "UTC"), 4),
            field("d", pa.timestamp("us"), 5),
            field("s", pa.string(), 6),
        ),
    )

    values = rows.to_pylist()[0]
    assert (values["i"], values["n"], values["s"]) == (-5, Decimal("123.45"), "ä")
    assert values["f"] == float(np.float32(0.1))
    assert values["t"].replace(tzinfo=None) == moment
    assert values["d"] == datetime(2024, 5, 1)  # noqa: DTZ001 - as above


def nested(number: int, *inside: TableField) -> TableField:
    kind = pa.struct([(one.name, one.type) for one in inside])
    return field("element", kind, number, *inside)


def test_fields_of_structs_in_lists_and_maps_are_found_too(tmp_path: Path) -> None:
    inside = pa.struct([with_id("x", pa.int32(), 11), with_id("y", pa.string(), 12)])
    file = written(
        tmp_path / "a.parquet",
        [
            (with_id("s", inside, 1), [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]),
            (
                with_id("l", pa.list_(with_id("element", inside, 21)), 2),
                [[{"x": 2, "y": "c"}, None], None, []],
            ),
            (
                with_id("m", pa.map_(pa.string(), with_id("value", inside, 31)), 3),
                [[("k", {"x": 3, "y": "d"})], [], None],
            ),
        ],
    )
    renamed = (
        field("z", pa.int32(), 13),
        field("y", pa.int64(), 11),
        field("x", pa.string(), 12),
    )
    struct = nested(1, *renamed)
    entries = pa.map_(pa.string(), struct.type)

    source = open_table(
        [file],
        TableField(name="s", type=struct.type, id=1, parts=renamed),
        field("l", pa.list_(struct.type), 2, nested(21, *renamed)),
        field("m", entries, 3, field("key", pa.string(), 30), nested(31, *renamed)),
    )
    rows = rows_of(tmp_path, source)

    def made(x: int | None, y: str) -> dict[str, Any]:
        return {"z": None, "y": x, "x": y}

    assert rows["s"].to_pylist() == [made(1, "a"), None, made(None, "b")]
    assert rows["l"].to_pylist() == [[made(2, "c"), None], None, []]
    assert rows["m"].to_pylist() == [[("k", made(3, "d"))], [], None]
    assert not is_native(source)


def test_rows_that_were_deleted_are_left_out_by_their_numbers_in_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.parquet", [(with_id("a", pa.int64(), 1), list(range(100)))], row_group_size=30
    )
    gone = (0, 29, 30, 31, 59, 89, 90, 99)
    deleted = SnapshotFile(path=file.path, deleted=Deleted(gone))

    source = open_table([deleted], field("a", pa.int64(), 1), field("b", pa.int64(), 2))

    kept = [number for number in range(100) if number not in gone]
    assert rows_of(tmp_path, source)["a"].to_pylist() == kept, "each row group by itself"
    assert rows_of(tmp_path, source, split_bytes=1 << 30)["a"].to_pylist() == kept
    assert rows_of(tmp_path, source, ["b"]).num_rows == len(kept)
    assert not is_native(source)


def test_a_part_of_a_file_is_itself_again_only_in_the_same_columns(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.parquet",
        [(with_id("a", pa.int64(), 1), [1]), (with_id("b", pa.int64(), 2), [2])],
    )

    def identity(columns: list[str], *fields: TableField, gone: tuple[int, ...] = ()) -> str:
        one = SnapshotFile(path=file.path, deleted=Deleted(gone) if gone else None)
        source = open_table([one], *fields)
        (part,) = cut(source.shapes, split_bytes_target=1 << 30, map_tasks_max=9)
        return f"{part.identity(columns)} {source.describe(columns)}"

    a, b = field("a", pa.int64(), 1), field("b", pa.int64(), 2)
    before = identity(["a"], a, b)

    assert identity(["a"], b, a, field("c", pa.int64(), 3)) == before, "a column that is not read"
    assert identity(["a"], field("a", pa.int64(), 2)) != before, "another column of that name"
    assert identity(["a"], field("a", pa.int64(), 5)) != before, "a new column of that name"
    assert identity(["a"], a, b, gone=(0,)) != before


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (field("a", pa.int32(), 1), "it is int64 in the file and int32 in the table"),
        (field("a", pa.string(), 1), "it is int64 in the file and string in the table"),
        (field("a", pa.decimal128(10, 1), 2), "decimal128"),
        (field("a", pa.int64(), 9, required=True), "the table requires it"),
        (field("a", pa.list_(pa.int64()), 1, field("element", pa.int64(), 5)), "it is int64"),
        (field("a", pa.int64(), 3), "several columns of the file are it: a, b"),
    ],
)
def test_a_file_that_does_not_fit_its_table_is_refused(
    tmp_path: Path, wanted: TableField, found: str
) -> None:
    file = written(
        tmp_path / "a.parquet",
        [
            (with_id("x", pa.int64(), 1), [1]),
            (with_id("n", pa.decimal128(10, 2), 2), [Decimal(1)]),
            (with_id("a", pa.int64(), 3), [1]),
            (with_id("b", pa.int64(), 3), [1]),
        ],
    )

    with pytest.raises(UserError, match=found):
        open_table([file], wanted)


def test_files_without_ids_are_read_by_names(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", [(pa.field("old", pa.int64()), [1])])

    def value(ids: FieldIds, *names: str) -> Any:  # noqa: ANN401 - a value
        source = open_table([file], field("new", pa.int64(), 1, names=names), ids=ids)
        return rows_of(tmp_path, source)["new"].to_pylist()[0]

    assert value("if there", "new", "old") == 1
    assert value("if there", "new") is None
    assert value("always", "new", "old") is None
