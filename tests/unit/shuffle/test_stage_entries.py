"""A reader of one partition needs one small read, however many map outputs there are."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import begin, choice, folder, made_from, summed, write

from millrace.errors import Corrupt, DataLost
from millrace.ids import AttemptId, FolderId, QueryId, StageId
from millrace.keys import CustomPartitioner
from millrace.shuffle import reader, reuse, runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.manifest import Manifest, decode, encode
from millrace.shuffle.stage_entries import SentColumns, StageTable
from millrace.storage.documents import seal
from millrace.storage.local import LocalStore

OUTPUTS, PARTITIONS = 20, 5
# Partition 4 is empty, and so are others here and there.
BY = CustomPartitioner(lambda batch: pa.array([x % 4 for x in batch["x"].to_pylist()]), PARTITIONS)


@dataclass(frozen=True, slots=True)
class CountingStore(LocalStore):
    """Notes what is read."""

    reads: list[tuple[str, int]] = field(default_factory=list, compare=False)

    def read(self, relative: str) -> bytes | None:
        data = LocalStore.read(self, relative)
        self.reads.append((os.path.basename(relative), len(data or b"")))
        return data

    def load(self, relative: str, offset: int, size: int) -> tuple[int, pa.Buffer]:
        self.reads.append((os.path.basename(relative), size))
        return LocalStore.load(self, relative, offset, size)


def outputs_of(store: LocalStore, count: int = OUTPUTS) -> list[MapTaskIndex]:
    begin(store)
    return [
        write(
            store,
            AttemptId.of(1, 0, task, 1),
            pa.table({"x": range(task, task + task % 4)}, schema=pa.schema([("x", pa.int64())])),
            by=BY,
            source=made_from(f"{task}.parquet"),
        )
        for task in range(count)
    ]


def decided(store: LocalStore, indexes: Sequence[MapTaskIndex]) -> Manifest:
    """The manifest that a driver writes, and beside it the entries."""
    table = StageTable.of(indexes, PARTITIONS)
    assert table.write(store, QueryId(1), StageId(0), sync=False)
    manifest = Manifest(
        query_id=QueryId(1),
        stage_id=StageId(0),
        created_at_ms=1,
        partitions=PARTITIONS,
        partitioner={"kind": "custom"},
        schema=indexes[0].schema,
        chosen=tuple(choice(number, index) for number, index in enumerate(indexes)),
        partition_rows=table.rows(),
        partition_bytes=table.bytes(),
        entries=table.sums(),
    )
    runs.write_manifest(store, manifest, sync=False)
    return manifest


def opened(store: LocalStore) -> Shuffle:
    manifest = runs.read_manifest(store, QueryId(1), StageId(0))
    return Shuffle(manifest=manifest, stores={None: store})


def expected(partition: int, count: int = OUTPUTS) -> list[int]:
    rows = [x for task in range(count) for x in range(task, task + task % 4)]
    return [x for x in rows if x % 4 == partition]


def test_a_partition_costs_one_read_beside_its_rows_and_few_bytes(store: LocalStore) -> None:
    manifest = decided(store, outputs_of(store))
    counting = CountingStore(store.root)
    shuffle = Shuffle(manifest=manifest, stores={None: counting})

    assert shuffle.read(2)["x"].to_pylist() == expected(2)

    names = [name for name, _ in counting.reads]
    assert names[0] == "entries.bin"
    assert counting.reads[0][1] == 40 * OUTPUTS
    assert set(names[1:]) == {"data.ipc"}
    counting.reads.clear()
    assert shuffle.read(4).num_rows == 0
    assert counting.reads == [("entries.bin", 40 * OUTPUTS)]


def test_all_that_is_said_of_a_partition_is_said_by_the_entries(store: LocalStore) -> None:
    indexes = outputs_of(store)
    manifest = decided(store, indexes)
    shuffle = opened(store)

    assert decode(encode(manifest), where="here") == manifest
    assert manifest.partition_rows == summed([[p.rows for p in i.partitions] for i in indexes])
    for partition in range(PARTITIONS):
        entries = shuffle.entries(partition)
        assert entries.tolist() == [index.entries[partition].item() for index in indexes]
        assert shuffle.read(partition)["x"].to_pylist() == expected(partition)
    some = shuffle.of_outputs([7, 3, 11]).of_outputs([2, 1])
    assert some.read(3)["x"].to_pylist() == [
        x for t in (11, 3) for x in range(t, t + 3) if x % 4 == 3
    ]
    assert [number for number, _ in shuffle.outputs(1, 5)] == [
        task for task in range(5, OUTPUTS) if any(x % 4 == 1 for x in range(task, task + task % 4))
    ]


@pytest.mark.parametrize("harm", ["gone", "short", "flipped", "of another stage", "empty"])
def test_whatever_is_wrong_with_the_entries_the_rows_are_right(
    store: LocalStore, harm: str
) -> None:
    decided(store, outputs_of(store))
    path = Path(store.path("shuffle/1/0/entries.bin"))
    data = bytearray(path.read_bytes())
    match harm:
        case "gone":
            path.unlink()
        case "short":
            path.write_bytes(data[:30])
        case "flipped":
            for at in range(24, len(data), 40):
                data[at + 17] ^= 1
            path.write_bytes(data)
        case "of another stage":
            path.write_bytes(data[:24] + data[24 + 40 * OUTPUTS :] + data[24 : 24 + 40 * OUTPUTS])
        case _:
            path.write_bytes(bytes(len(data)))

    for partition in range(PARTITIONS):
        assert opened(store).read(partition)["x"].to_pylist() == expected(partition)


def test_lost_rows_are_an_error_with_entries_as_without(store: LocalStore) -> None:
    decided(store, outputs_of(store))
    store.discard("shuffle/1/0/3/1")
    with pytest.raises(DataLost, match="shuffle/1/0/3/1/data.ipc is gone"):
        opened(store).read(3)

    path = folder(store, AttemptId.of(1, 0, 7, 1)) / "data.ipc"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(Corrupt, match="wrong checksum"):
        opened(store).of_outputs([6, 7]).read(3)


def test_columns_that_came_with_a_task_are_used_where_the_folder_is_not_seen(
    store: LocalStore,
) -> None:
    indexes = outputs_of(store)
    manifest = decided(store, indexes)
    here = FolderId("0" * 16)
    chosen = tuple(replace(one, folder=here) for one in manifest.chosen)
    counting = CountingStore(store.root)
    sent = SentColumns({2: opened(store).entries(2).tobytes()})
    shuffle = Shuffle(
        manifest=replace(manifest, chosen=chosen), stores={here: counting}, columns=sent
    )

    assert shuffle.read(2)["x"].to_pylist() == expected(2)
    assert {name for name, _ in counting.reads} == {"data.ipc"}
    assert shuffle.read(1)["x"].to_pylist() == expected(1)  # Not sent: the indexes say it.


def as_before(store: LocalStore, index: MapTaskIndex) -> MapTaskIndex:
    """Write an attempt anew as versions did that had a file for each partition."""
    place = folder(store, index.id)
    document = json.loads((place / "index.json").read_bytes())
    data = (place / "data.ipc").read_bytes() if index.rows else b""
    for part in document["partitions"]:
        if part["file"] is not None:
            name = f"part-{part['reduce_partition']}.ipc"
            rows = data[part["offset"] : part["offset"] + part["bytes"]]
            (place / name).write_bytes(rows)
            part |= {"file": name, "offset": 0}
    payload = seal({name: value for name, value in document.items() if name != "checksum"})
    (place / "index.json").write_bytes(payload)
    (place / "index.bin").write_bytes(b"FFQI" + struct.pack("<II", 1, len(payload)) + payload)
    (place / "data.ipc").unlink(missing_ok=True)
    return reader.read_index(store, index.id.task, index.id.attempt)


def test_attempts_of_the_form_before_are_read_and_reused_beside_new_ones(
    store: LocalStore,
) -> None:
    indexes = outputs_of(store)
    mixed = [as_before(store, i) if n % 2 else i for n, i in enumerate(indexes)]
    decided(store, mixed)

    for partition in range(PARTITIONS):
        assert opened(store).read(partition)["x"].to_pylist() == expected(partition)
    assert opened(store).verify().ok
    for old in mixed:
        assert reuse.find(store, old.made_from, has_content=lambda _: True, verify=True) == old
    contents = [index.content_checksum() for index in mixed]
    assert contents == [index.content_checksum() for index in indexes]


def test_a_manifest_is_sent_to_tasks_as_few_bytes(store: LocalStore) -> None:
    manifest = decided(store, outputs_of(store))
    away = FolderId("0123456789abcdef")
    some = tuple(
        replace(one, folder=away, attempt=AttemptId.of(2**63 + n, n % 2, 2**64 - 1 - n, 1 + n % 3))
        for n, one in enumerate(manifest.chosen)
    )
    mixed = replace(manifest, chosen=(*some, *manifest.chosen))
    assert pickle.loads(pickle.dumps(mixed)) == mixed
    assert pickle.loads(pickle.dumps(replace(manifest, chosen=()))).chosen == ()

    many = replace(
        manifest,
        chosen=tuple(
            replace(one, attempt=AttemptId.of(1, 0, n, 1), content=f"{hash((n, 'x')) % 2**64:016x}")
            for n, one in enumerate(manifest.chosen * 200)
        ),
    )
    assert len(many.chosen) == 4000
    assert len(pickle.dumps(many)) < 4000 * 20
