"""After any changes of an Iceberg table, its rows are those that pyiceberg reads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)
from tests.laws import examples
from tests.unit.tables.iceberg_kit import catalog_in, data_files, delete_rows

from millrace.scan.splits import cut
from millrace.tables.iceberg.iceberg_catalogs import load_table
from millrace.tables.iceberg.iceberg_snapshots import pin_snapshot

TYPES: list[PrimitiveType] = [
    IntegerType(),
    FloatType(),
    DecimalType(5, 2),
    StringType(),
    LongType(),
]
WIDER: dict[str, PrimitiveType] = {
    "int": LongType(),
    "float": DoubleType(),
    "decimal(5, 2)": DecimalType(12, 2),
}
NAMES = ["a", "b", "c", "d"]
VALUES: dict[type, Callable[[int], Any]] = {
    IntegerType: lambda n: n,
    LongType: lambda n: n << 34,
    FloatType: lambda n: n / 4,
    DoubleType: lambda n: n / 3,
    DecimalType: Decimal,
    StringType: lambda n: f"text {n}",
}
CHANGES = st.tuples(
    st.sampled_from(
        ["append", "append", "add", "drop", "rename", "widen", "move", "delete", "spec"]
    ),
    st.integers(0, 99),
)


def value(kind: IcebergType, number: int) -> Any:  # noqa: ANN401 - of any type
    if number % 5 == 0:
        return None
    if isinstance(kind, StructType):
        return {
            part.name: value(part.field_type, number + at + 1)
            for at, part in enumerate(kind.fields)
        }
    return VALUES[type(kind)](number)


def appended(table: Table, seed: int) -> None:
    columns = table.schema().fields
    rows = [
        {one.name: value(one.field_type, seed + row * 7 + at) for at, one in enumerate(columns)}
        for row in range(1 + seed % 4)
    ]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


def changed(table: Table, what: str, seed: int) -> None:
    columns = table.schema().fields
    column = columns[seed % len(columns)]
    match what:
        case "append":
            appended(table, seed)
        case "spec":
            respecified(table, column)
        case "delete":
            for file in data_files(table)[seed % 3 : seed % 3 + 1]:
                rows = {file.file_path: [seed % file.record_count]}
                delete_rows(table, rows, "vectors" if seed % 2 else "files")
        case "add":
            added(table, column, seed)
        case "move":
            with table.update_schema() as change:
                change.move_first(column.name)
        case _:
            specs = table.specs().values()  # Of a dropped source pyiceberg writes no deletes.
            if column.field_id not in {part.source_id for spec in specs for part in spec.fields}:
                altered(table, column, what, seed)


def free_name(table: Table, seed: int) -> str:
    taken = {one.name for one in table.schema().fields}
    free = [name for name in [*NAMES, "e", "f", "g"] if name not in taken]
    return free[seed % len(free)] if free else f"more{len(taken)}"


def added(table: Table, column: NestedField, seed: int) -> None:
    kind: IcebergType = TYPES[seed % len(TYPES)]
    if seed % 6 == 0:
        parts = [TYPES[seed % 5], LongType()]
        kind = StructType(*(NestedField(900 + at, "xy"[at], part) for at, part in enumerate(parts)))
    with table.update_schema() as change:
        if isinstance(column.field_type, StructType) and seed % 2:
            name = f"z{len(column.field_type.fields)}{seed}"
            change.add_column((column.name, name), StringType())
        else:
            change.add_column(free_name(table, seed), kind)


def altered(table: Table, column: NestedField, what: str, seed: int) -> None:
    with table.update_schema() as change:
        if what == "drop" and len(table.schema().fields) > 1:
            change.delete_column(column.name)
        elif what == "rename" and isinstance(column.field_type, StructType) and seed % 2:
            change.rename_column((column.name, column.field_type.fields[0].name), f"q{seed}")
        elif what == "rename":
            change.rename_column(column.name, free_name(table, seed))
        elif what == "widen" and str(column.field_type) in WIDER:
            change.update_column(column.name, WIDER[str(column.field_type)])


def respecified(table: Table, column: NestedField) -> None:
    with table.update_spec() as spec:
        if table.spec().fields:
            for part in table.spec().fields:
                spec.remove_field(part.name)
        elif isinstance(column.field_type, IntegerType | StringType | LongType):
            spec.add_identity(column.name)


def ours(location: str) -> list[dict[str, Any]]:
    pinned = pin_snapshot(load_table(location, None, call="read"), None, call="read")
    if pinned.source is None:
        return []
    reader = pinned.source.reader()
    inputs = cut(pinned.source.shapes, split_bytes_target=1 << 20, map_tasks_max=100)
    rows = [batch for one in inputs for batch in reader.batches(one, 1 << 20)]
    return sorted(pa.Table.from_batches(rows, reader.schema).to_pylist(), key=str)


@settings(max_examples=examples(30))
@given(changes=st.lists(CHANGES, min_size=1, max_size=9))
def test_rows_are_those_that_pyiceberg_reads(changes: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        catalog = catalog_in(Path(folder))
        fields = [NestedField(at + 1, name, TYPES[at]) for at, name in enumerate(NAMES[:3])]
        spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "a"))
        table = catalog.create_table("db.t", Schema(*fields), partition_spec=spec)
        for what, seed in [("append", 3), *changes, ("append", 11)]:
            changed(table, what, seed)
            table.refresh()

        wanted = sorted(table.scan().to_arrow().to_pylist(), key=str)
        found = ours(table.metadata_location)

    assert found == wanted
    assert [list(row) for row in found] == [list(row) for row in wanted]


def test_polars_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    catalog = catalog_in(tmp_path)
    fields = [NestedField(at + 1, name, TYPES[at]) for at, name in enumerate(NAMES)]
    table = catalog.create_table("db.t", Schema(*fields))
    for what, seed in [
        ("append", 3), ("rename", 1), ("append", 7), ("drop", 2), ("append", 2), ("delete", 2),
        ("widen", 0), ("add", 8), ("append", 6), ("move", 3),
    ]:  # fmt: skip
        changed(table, what, seed)
        table.refresh()

    theirs = pl.scan_iceberg(table).collect().to_dicts()

    assert ours(table.metadata_location) == sorted(theirs, key=str)
