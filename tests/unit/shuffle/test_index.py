"""What is said of an index that is not one, and which one is preferred."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.unit.shuffle.shuffle_kit import column, folder, read, to_partition, values, write

from millrace.errors import Corrupt, FormatError, MapOutputMissing
from millrace.ids import LATEST, AttemptId
from millrace.shuffle import reader
from millrace.shuffle.index import MapTaskIndex, decode_bin, decode_json, encode_json
from millrace.storage.documents import seal
from millrace.storage.local import LocalStore

ATTEMPT = AttemptId.of(1, 0, 0, 1)


@pytest.fixture
def index(store: LocalStore) -> MapTaskIndex:
    return write(store, ATTEMPT, column([1, 2, 3]), by=to_partition(1, 3))


@pytest.fixture
def binary(store: LocalStore, index: MapTaskIndex) -> Path:
    return folder(store, index.id) / "index.bin"


def document(store: LocalStore) -> dict[str, Any]:
    found = json.loads((folder(store, ATTEMPT) / "index.json").read_bytes())
    assert isinstance(found, dict)
    return found


def put(store: LocalStore, changed: dict[str, Any]) -> None:
    """Write both files anew, sealed, so that nothing but the change is wrong."""
    payload = seal({name: value for name, value in changed.items() if name != "checksum"})
    (folder(store, ATTEMPT) / "index.json").write_bytes(payload)
    (folder(store, ATTEMPT) / "index.bin").write_bytes(version_1(payload))


def version_1(payload: bytes) -> bytes:
    """An `index.bin` as it was before entries had a fixed width."""
    return b"FFQI" + struct.pack("<II", 1, len(payload)) + payload


def complaint(store: LocalStore) -> str:
    """What a reader says of the index, and that it names the file."""
    (folder(store, ATTEMPT) / "index.json").unlink()  # Else it would make up for the other one.
    with pytest.raises((Corrupt, FormatError)) as caught:
        reader.read_index(store, ATTEMPT.task, ATTEMPT.attempt)
    assert str(folder(store, ATTEMPT) / "index.bin") in str(caught.value)
    return str(caught.value)


def test_the_file_is_magic_version_length_a_document_and_entries(
    index: MapTaskIndex, binary: Path
) -> None:
    data = binary.read_bytes()

    assert data[:4] == b"FFQI"
    version, length = struct.unpack("<II", data[4:12])
    assert version == 2
    found = json.loads(data[12 : 12 + length])
    assert found["query_id"] == 1
    assert found["created_at_ms"] == 1
    assert found["partitions"] == 3
    assert found["content"] == index.content_checksum()
    entries = list(struct.iter_unpack("<4Q2I", data[12 + length :]))
    assert [rows for _, _, rows, _, _, _ in entries] == [0, 3, 0]
    assert [form for _, _, _, _, _, form in entries] == [0, 1, 0]
    assert decode_bin(data, where="here") == index


def test_json_has_the_same_for_people(index: MapTaskIndex, binary: Path) -> None:
    found = json.loads((binary.parent / "index.json").read_bytes())

    assert [part["rows"] for part in found["partitions"]] == [0, 3, 0]
    assert [part["file"] for part in found["partitions"]] == [None, "data.ipc", None]
    assert set(found["partitions"][1]) == {
        *("reduce_partition", "file", "offset", "bytes", "rows", "batches", "checksum")
    }
    assert index.rows == 3


def test_version_3_is_refused_with_the_version_that_is_read(
    store: LocalStore, binary: Path
) -> None:
    data = binary.read_bytes()
    binary.write_bytes(data[:4] + struct.pack("<I", 3) + data[8:])

    assert "has index version 3, this Millrace reads version 2" in complaint(store)


@pytest.mark.parametrize("byte", range(1, 121, 7))
def test_a_changed_byte_of_an_entry_is_found(store: LocalStore, binary: Path, byte: int) -> None:
    data = bytearray(binary.read_bytes())
    data[-byte] ^= 1
    binary.write_bytes(bytes(data))

    assert "its entries have checksum" in complaint(store)


def test_entries_that_are_missing_are_found(store: LocalStore, binary: Path) -> None:
    binary.write_bytes(binary.read_bytes()[:-40])

    assert "80 bytes of entries, 3 partitions have 120" in complaint(store)


def test_a_wrong_magic_is_refused(store: LocalStore, binary: Path) -> None:
    binary.write_bytes(b"PAR1" + binary.read_bytes()[4:])

    assert "it starts with b'PAR1', an index with" in complaint(store)


def test_a_length_beyond_the_file_is_refused(store: LocalStore, binary: Path) -> None:
    data = binary.read_bytes()
    binary.write_bytes(data[:8] + struct.pack("<I", 10**9) + data[12:])

    assert f"{len(data) - 12} payload bytes, its header says 1000000000" in complaint(store)


def test_a_length_short_of_the_file_is_refused(store: LocalStore, binary: Path) -> None:
    binary.write_bytes(version_1(b"{}") + b"}")

    assert "3 payload bytes, its header says 2" in complaint(store)


@pytest.mark.parametrize("length", [0, 1, 11])
def test_a_cut_header_is_refused(store: LocalStore, binary: Path, length: int) -> None:
    binary.write_bytes(binary.read_bytes()[:length])

    assert f"{length} bytes, a header has 12: it is cut short" in complaint(store)


def test_a_payload_that_is_not_json_is_refused(store: LocalStore, binary: Path) -> None:
    binary.write_bytes(version_1(b"\xff\xfe not json"))

    assert "cannot be read as an index" in complaint(store)


def test_json_is_read_where_the_binary_is_missing(store: LocalStore, binary: Path) -> None:
    binary.unlink()

    assert values(store, ATTEMPT, LATEST) == [1, 2, 3]


@pytest.mark.parametrize("damaged", [b"", b"FFQI", b"\0" * 400])
def test_json_is_read_where_the_binary_is_damaged(
    store: LocalStore, binary: Path, damaged: bytes
) -> None:
    binary.write_bytes(damaged)

    assert values(store, ATTEMPT, LATEST) == [1, 2, 3]


def test_a_changed_number_is_found_by_the_checksum(store: LocalStore, binary: Path) -> None:
    data = binary.read_bytes()
    binary.write_bytes(data.replace(b'"attempt":1', b'"attempt":2'))

    assert "its bytes have checksum" in complaint(store)


def test_the_binary_is_preferred(store: LocalStore, binary: Path) -> None:
    (binary.parent / "index.json").write_bytes(b"not an index at all")

    assert values(store, ATTEMPT, LATEST) == [1, 2, 3]


def test_fields_of_later_versions_are_left_alone(store: LocalStore, index: MapTaskIndex) -> None:
    changed = document(store) | {"colour": "blue"}
    changed["partitions"][1]["bloom"] = [1, 2]
    put(store, changed)

    assert reader.read_index(store, ATTEMPT.task, LATEST) == index
    assert read(store, ATTEMPT, 1) == [{"x": 1}, {"x": 2}, {"x": 3}]


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "../1/part-1.ipc", "/etc/passwd", "part-1.ipc/../../x", "part-01.ipc"),
        *("index.json", "", ".", "part-.ipc", "part--1.ipc", "part-1.ipc\0", "data.ipc/"),
    ],
)
def test_a_file_outside_the_attempt_is_refused(
    store: LocalStore, index: MapTaskIndex, name: str
) -> None:
    changed = document(store)
    changed["partitions"][index.partitions[1].reduce_partition]["file"] = name
    put(store, changed)

    assert f"names the file {name!r}" in complaint(store)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partitions": None}, "partitions is None, expected a list"),
        ({"partitions": [5]}, "cannot be read as an index"),
        ({"schema": "AAAA"}, "as an index\n  found: "),
        ({"schema": 5}, "schema is 5, expected a text"),
        ({"created_at_ms": "soon"}, "created_at_ms is 'soon'"),
        ({"created_at_ms": float("inf")}, "created_at_ms is inf"),
        ({"made_from": [1]}, "made_from is \\[1\\]"),
        ({"recent": "x"}, "recent is 'x'"),
    ],
    ids=str,
)
def test_a_field_of_the_wrong_kind_is_refused(
    store: LocalStore, index: MapTaskIndex, change: dict[str, Any], words: str
) -> None:
    put(store, document(store) | change)

    assert re.search(words, complaint(store))
    assert index.rows == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"file": None}, "partition 1 has 3 rows and no file"),
        ({"file": 5}, "file is 5"),
        ({"checksum": None}, "no usable range or checksum"),
        ({"checksum": 5}, "checksum is 5"),
        ({"bytes": 0}, "no usable range or checksum"),
        ({"offset": -1}, "offset is -1, expected a whole number"),
        ({"rows": -3}, "rows is -3, expected a whole number"),
        ({"reduce_partition": 7}, "are numbered \\[0, 7, 2\\]"),
    ],
    ids=str,
)
def test_a_partition_that_cannot_be_is_refused(
    store: LocalStore, index: MapTaskIndex, change: dict[str, Any], words: str
) -> None:
    changed = document(store)
    changed["partitions"][index.partitions[1].reduce_partition] |= change
    put(store, changed)

    assert re.search(words, complaint(store))


@pytest.mark.parametrize("missing", ["query_id", "attempt", "partitions", "schema"])
def test_a_missing_field_is_named(store: LocalStore, index: MapTaskIndex, missing: str) -> None:
    changed = document(store)
    del changed[missing]
    put(store, changed)

    assert f"KeyError: '{missing}'" in complaint(store)
    assert index.rows == 3


def test_an_index_that_was_moved_is_not_taken_for_another_attempts(
    store: LocalStore, index: MapTaskIndex
) -> None:
    other = AttemptId.of(1, 0, 0, 2)
    folder(store, ATTEMPT).rename(folder(store, other))

    with pytest.raises(Corrupt, match="is the index of another attempt\n  found: 1/0/0/1"):
        read(store, other, 1)
    assert reader.latest_attempt(store, index.id.task) is None


def test_an_invalid_index_makes_no_attempt(store: LocalStore, binary: Path) -> None:
    write(store, AttemptId.of(1, 0, 0, 2), column([9]))
    for name in ("index.bin", "index.json"):
        torn = folder(store, AttemptId.of(1, 0, 0, 2)) / name
        torn.write_bytes(torn.read_bytes()[:40])

    assert binary.exists()
    assert reader.latest_attempt(store, ATTEMPT.task) == 1
    with pytest.raises(MapOutputMissing, match="attempts found: 1\n"):
        reader.read_index(store, ATTEMPT.task, AttemptId.of(1, 0, 0, 5).attempt)


def test_the_content_checksum_changes_with_any_row(store: LocalStore, index: MapTaskIndex) -> None:
    same = write(store, AttemptId.of(2, 0, 0, 1), column([1, 2, 3]), by=to_partition(1, 3))
    other = write(store, AttemptId.of(3, 0, 0, 1), column([1, 2, 4]), by=to_partition(1, 3))
    moved = write(store, AttemptId.of(4, 0, 0, 1), column([1, 2, 3]), by=to_partition(2, 3))

    assert same.content_checksum() == index.content_checksum()
    assert len({i.content_checksum() for i in (index, other, moved)}) == 3


def test_json_and_back_is_the_same_index(index: MapTaskIndex) -> None:
    assert decode_json(encode_json(index), where="here") == index
