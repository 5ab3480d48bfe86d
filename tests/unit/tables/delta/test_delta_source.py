"""Versions of Delta tables as sources: what others wrote is read as they read it, or refused."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64
from tests.unit.tables.delta.delta_kit import (
    ALL_TYPES,
    CONFIG,
    PARTITIONS,
    append,
    append_by_another,
    values,
)

from millrace.errors import DataLost, UserError
from millrace.scan.file_bounds import high_of, low_of, nulls_of
from millrace.scan.source import FileSource
from millrace.scan.splits import cut
from millrace.storage.storage_options import StorageOptions
from millrace.tables.delta.deletion_vectors import _B85, _Z85
from millrace.tables.delta.delta_source import delta_source

FROM_B85 = bytes.maketrans(_B85, _Z85)


def source_of(path: Path, version: int | None = None) -> FileSource:
    source = delta_source(str(path), version, StorageOptions(), CONFIG)
    assert isinstance(source, FileSource)
    return source


def rows_of(path: Path, version: int | None = None) -> pa.Table:
    source = source_of(path, version)
    inputs = cut(source.shapes, split_bytes_target=1, map_tasks_max=100)
    reader = source.reader(None)
    batches = [batch for one in inputs for batch in reader.batches(one, 1 << 20)]
    return pa.Table.from_batches(batches, reader.schema)


def x_of(path: Path, version: int | None = None) -> list[int]:
    return sorted(rows_of(path, version)["x"].to_pylist())


def rewrite(path: Path, version: int, **changes: Any) -> None:  # noqa: ANN401 - actions of the log
    """Change actions of a version: `add` of the first file, `metaData`, `protocol`."""
    log = path / f"_delta_log/{version:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for kind, change in changes.items():
        there = next((line for line in lines if kind in line), None)
        if there is None:
            lines.append({kind: change})
        else:
            there[kind] |= change
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_rows_of_all_types_and_partitions_come_back(tmp_path: Path) -> None:
    columns = {n: ALL_TYPES[n] for n in ALL_TYPES.schema.names}
    columns |= {n: PARTITIONS[n] for n in PARTITIONS.schema.names}
    every = pa.table(columns)
    append(tmp_path / "mine", every, 1, *PARTITIONS.schema.names)
    # delta-rs cannot write a negative decimal as a partition, nor does it name the zone of times.
    no_zones = [name for name in PARTITIONS.schema.names if name not in ("pt", "pdec")]
    theirs = every.drop_columns(["pt"])
    write_deltalake(str(tmp_path / "theirs"), theirs, partition_by=no_zones)
    for name, given in (("mine", every), ("theirs", theirs)):
        found = rows_of(tmp_path / name)
        assert found.schema.names == given.schema.names
        assert values(found, given.schema.names) == values(given, given.schema.names)


def test_each_version_is_read_as_it_was_and_keeps_its_files(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for number in range(3):
        append_by_another(table, pa.table({"x": [number]}))
    DeltaTable(str(table)).delete("x = 1")
    assert [x_of(table, version) for version in range(4)] == [[0], [0, 1], [0, 1, 2], [0, 2]]
    assert x_of(table) == [0, 2]
    old = {repr(shape.file.identity()) for shape in source_of(table, 2).shapes}
    new = {repr(shape.file.identity()) for shape in source_of(table).shapes}
    assert len(old - new) == 1, "a file that is in both versions is the same work"
    assert new < old


def test_columns_that_came_later_are_null_in_older_files(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append_by_another(table, pa.table({"x": [1]}))
    append_by_another(table, pa.table({"x": [2], "y": ["a"]}), schema_mode="merge")
    assert values(rows_of(table), ["x", "y"]) == ["[1, None]", "[2, 'a']"]
    assert rows_of(table, 0).schema.names == ["x"]


def test_wider_types_hold_the_values_of_older_files(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append_by_another(table, pa.table({"x": pa.array([1], pa.int32())}))
    fields = [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]
    rewrite(table, 0, metaData={"schemaString": json.dumps({"type": "struct", "fields": fields})})
    features = ["typeWidening"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    rewrite(table, 0, protocol=protocol | {"readerFeatures": features, "writerFeatures": features})
    assert rows_of(table).schema.field("x").type == pa.int64()
    assert x_of(table) == [1]


def test_mapped_columns_are_found_by_their_names_in_files(tmp_path: Path) -> None:
    table = tmp_path / "t"
    append_by_another(table, pa.table({"col-1": [1, 2], "col-2": ["a", "b"]}))

    def mapped(name: str, kind: str, number: int) -> dict[str, Any]:
        physical = f"col-{number}"
        about = {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": number}
        return {"name": name, "type": kind, "nullable": True, "metadata": about}

    fields = [mapped("text", "string", 2), mapped("x", "long", 1), mapped("new", "long", 3)]
    configuration = {"delta.columnMapping.mode": "name"}
    schema = json.dumps({"type": "struct", "fields": fields})
    rewrite(table, 0, metaData={"schemaString": schema, "configuration": configuration})
    rewrite(table, 0, protocol={"minReaderVersion": 2, "minWriterVersion": 5})
    names = ["text", "x", "new"]
    assert values(rows_of(table), names) == ["['a', 1, None]", "['b', 2, None]"]
    bounds = source_of(table).bounds
    assert bounds is not None
    assert bounds[high_of("x")].to_pylist() == [2]


def with_vector(table: Path, gone: list[int], *, storage: str) -> None:
    """A table of the numbers to 999, of which these are deleted by a vector."""
    append_by_another(table, pa.table({"x": list(range(1000))}))
    data = struct.pack("<i", 1681511377) + BitMap64(gone).serialize()
    vector: dict[str, Any] = {"sizeInBytes": len(data), "cardinality": len(gone)}
    if storage == "i":
        padded = data + b"\0" * (-len(data) % 4)
        text = base64.b85encode(padded).translate(FROM_B85).decode()
        vector |= {"storageType": "i", "pathOrInlineDv": text}
    else:
        number = UUID(int=7)
        name = f"deletion_vector_{number}.bin"
        folder = table / "ab" if storage == "u" else table
        folder.mkdir(exist_ok=True)
        behind = struct.pack(">I", zlib.crc32(data))
        (folder / name).write_bytes(b"\1" + struct.pack(">I", len(data)) + data + behind)
        letters = base64.b85encode(number.bytes).translate(FROM_B85).decode()
        where = f"ab{letters}" if storage == "u" else f"{folder}/{name}"
        vector |= {"storageType": storage, "pathOrInlineDv": where, "offset": 1}
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    rewrite(
        table,
        0,
        add={"deletionVector": vector},
        protocol=protocol | {"readerFeatures": features, "writerFeatures": features},
    )


@pytest.mark.parametrize("storage", ["u", "p", "i"])
def test_rows_that_a_deletion_vector_names_are_gone(tmp_path: Path, storage: str) -> None:
    gone = [0, 7, 500, 999]
    with_vector(tmp_path / "t", gone, storage=storage)
    assert x_of(tmp_path / "t") == [x for x in range(1000) if x not in gone]
    if storage != "p":  # Which delta-rs takes for a url.
        theirs = pa.table(DeltaTable(str(tmp_path / "t")).deletion_vectors().read_all())
        kept = theirs["selection_vector"].to_pylist()[0]
        kept += [True] * (1000 - len(kept))
        assert [n for n, is_kept in enumerate(kept) if not is_kept] == gone


def test_a_damaged_deletion_vector_is_an_error(tmp_path: Path) -> None:
    with_vector(tmp_path / "t", [3], storage="u")
    (file,) = (tmp_path / "t/ab").iterdir()
    data = bytearray(file.read_bytes())
    data[12] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(DataLost, match="do not match their checksum"):
        rows_of(tmp_path / "t")
    file.write_bytes(bytes(data[:9]))
    with pytest.raises(DataLost, match="too short"):
        rows_of(tmp_path / "t")
    file.unlink()
    with pytest.raises(DataLost, match="deletion vector of .* is gone"):
        rows_of(tmp_path / "t")


def test_bounds_of_the_log_are_those_of_the_rows_or_wider(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    append(mine, ALL_TYPES)
    write_deltalake(str(theirs), ALL_TYPES)
    for table in (mine, theirs):
        bounds = source_of(table).bounds
        assert bounds is not None
        for name in ("i8", "i64", "d", "ts", "ntz", "dec", "s"):
            found = [value for value in ALL_TYPES[name].to_pylist() if value is not None]
            low, high = bounds[low_of(name)][0].as_py(), bounds[high_of(name)][0].as_py()
            assert low is None or low <= min(found), (table, name)
            assert high is None or high >= max(found), (table, name)
        assert bounds[nulls_of("i8")].to_pylist() == [1]


def test_a_table_without_files_has_its_columns(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "t"), pa.schema([("x", pa.int64())]))
    schema = delta_source(str(tmp_path / "t"), None, StorageOptions(), CONFIG)
    assert schema == pa.schema([("x", pa.int64())])


def test_files_elsewhere_are_found_by_their_whole_path(tmp_path: Path) -> None:
    append_by_another(tmp_path / "t", pa.table({"x": [1]}))
    (tmp_path / "other place").mkdir()
    pq.write_table(pa.table({"x": [5]}), tmp_path / "other place/f.parquet")
    where = f"file://{tmp_path}/other%20place/f.parquet"
    rewrite(tmp_path / "t", 0, add={"path": where})
    assert x_of(tmp_path / "t") == [5]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"protocol": {"minReaderVersion": 4, "minWriterVersion": 7}}, "reader version 4"),
        (
            {"protocol": {"minReaderVersion": 3, "readerFeatures": ["variantType"]}},
            "feature variantType",
        ),
        ({"metaData": {"configuration": {"delta.columnMapping.mode": "odd"}}}, "mapping by odd"),
        (
            {"add": {"deletionVector": {"storageType": "z", "pathOrInlineDv": ""}}},
            "storage type 'z'",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    append_by_another(tmp_path / "t", pa.table({"x": [1]}))
    rewrite(tmp_path / "t", 0, **change)
    with pytest.raises(UserError, match=told):
        source_of(tmp_path / "t")


@pytest.mark.parametrize("text", ["2020-01-01 00:00:00", "soon"])
def test_times_of_partitions_in_an_unknown_zone_are_refused(tmp_path: Path, text: str) -> None:
    append(tmp_path / "t", PARTITIONS.select(["pt", "pi"]).slice(0, 1), 1, "pt")
    rewrite(tmp_path / "t", 1, add={"partitionValues": {"pt": text}})
    with pytest.raises(UserError, match="for its partition column 'pt'"):
        source_of(tmp_path / "t")


def test_a_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no Delta table at .*\n.*no log in it"):
        source_of(tmp_path)
