"""A finished shuffle: reads follow the manifest and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import (
    begin,
    choice,
    decide,
    payload_files,
    write,
)

from millrace.errors import Corrupt, DataLost, MapOutputMissing, UserError
from millrace.ids import AttemptId, FolderId
from millrace.keys import RoundRobinPartitioner
from millrace.shuffle import reader
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.index import MapTaskIndex
from millrace.shuffle.manifest import Manifest
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.storage.local import LocalStore


def two_tasks(store: LocalStore) -> tuple[Manifest, list[MapTaskIndex]]:
    begin(store)
    indexes = [
        write(
            store,
            AttemptId.of(1, 0, task, 1),
            pa.table({"x": [10 * task + n for n in range(4)], "y": ["a", "b", None, "d"]}),
            by=RoundRobinPartitioner(2),
        )
        for task in range(2)
    ]
    return decide(store, 1, indexes), indexes


def test_a_partition_is_read_over_all_map_tasks_in_their_order(store: LocalStore) -> None:
    decided, _ = two_tasks(store)
    shuffle = Shuffle(manifest=decided, stores={None: store})

    assert shuffle.read(0)["x"].to_pylist() == [0, 2, 10, 12]
    assert shuffle.read(1, columns=["y"]).to_pydict() == {"y": ["b", "d", "b", "d"]}
    assert shuffle.rows == 8
    assert [size.rows for size in shuffle.sizes] == [4, 4]
    assert shuffle.bytes == sum(size.bytes for size in shuffle.sizes)


def test_a_later_attempt_changes_no_answer(store: LocalStore) -> None:
    decided, indexes = two_tasks(store)
    later = AttemptId.of(1, 0, 0, 2)
    write(store, later, pa.table({"x": [99], "y": ["z"]}), by=RoundRobinPartitioner(2))
    assert reader.latest_attempt(store, indexes[0].id.task) == 2

    assert Shuffle(manifest=decided, stores={None: store}).read(0)["x"].to_pylist() == [
        *(0, 2, 10, 12)
    ]


def test_an_output_made_again_with_other_rows_is_not_taken_for_the_first(
    store: LocalStore,
) -> None:
    decided, indexes = two_tasks(store)
    store.discard("shuffle/1/0/0/1")
    write(store, indexes[0].id, pa.table({"x": [7], "y": ["q"]}), by=RoundRobinPartitioner(2))

    with pytest.raises(Corrupt, match="is not the one this shuffle was made of"):
        Shuffle(manifest=decided, stores={None: store}).read(0)


def test_a_lost_output_is_an_error_and_no_empty_answer(store: LocalStore) -> None:
    decided, _ = two_tasks(store)
    store.discard("shuffle/1/0/1/1")

    with pytest.raises(MapOutputMissing, match="no map output at .*shuffle/1/0/1/1"):
        Shuffle(manifest=decided, stores={None: store}).read(0)


def test_a_partition_or_column_that_is_not_there_is_refused(store: LocalStore) -> None:
    decided, _ = two_tasks(store)
    shuffle = Shuffle(manifest=decided, stores={None: store})

    with pytest.raises(UserError, match="no partition 2\n  found: partitions 0 to 1"):
        shuffle.read(2)
    with pytest.raises(UserError, match="no column 'z'\n  found: columns x, y"):
        shuffle.read(0, columns=["z"])


def test_an_output_in_another_host_s_folder_is_fetched_there(store: LocalStore) -> None:
    _, indexes = two_tasks(store)
    away = FolderId("away")

    class Agents:
        def index(self, folder: FolderId, attempt: AttemptId) -> MapTaskIndex:
            assert folder == away
            return reader.read_index(store, attempt.task, attempt.attempt)

        def fetch_all(
            self, wanted: Iterable[tuple[FolderId, AttemptId, PartitionMeta]]
        ) -> Iterator[pa.Buffer]:
            for folder, attempt, meta in wanted:
                assert folder == away
                yield reader.map_partition(store, attempt, meta)

    begin(store)
    decided = decide(store, 2, indexes)
    mixed = Manifest(
        query_id=decided.query_id,
        stage_id=decided.stage_id,
        created_at_ms=1,
        partitions=2,
        partitioner={},
        schema=decided.schema,
        chosen=(choice(0, indexes[0], away), choice(1, indexes[1])),
        partition_rows=decided.partition_rows,
        partition_bytes=decided.partition_bytes,
    )

    found = Shuffle(manifest=mixed, stores={None: store}, remote=Agents())
    assert found.read(0)["x"].to_pylist() == [0, 2, 10, 12]
    with pytest.raises(DataLost, match="lies in folder away of another host"):
        Shuffle(manifest=mixed, stores={None: store}).read(0)


def test_verifying_reads_every_byte_and_names_what_is_wrong(store: LocalStore) -> None:
    decided, indexes = two_tasks(store)
    good = Shuffle(manifest=decided, stores={None: store}).verify()
    assert good.ok
    assert good.bytes == decided.partition_bytes[0] + decided.partition_bytes[1]
    assert good.map_outputs == 2

    path = payload_files(store, indexes[0].id)[0]
    path.write_bytes(path.read_bytes()[:-8] + b"\1" * 8)
    store.discard("shuffle/1/0/1/1")
    bad = Shuffle(manifest=decided, stores={None: store}).verify()

    assert not bad.ok
    assert str(path) in bad.problems[0]
    assert "no map output at" in bad.problems[-1]


def test_a_shuffle_becomes_a_dataframe_through_its_workspace_alone(store: LocalStore) -> None:
    decided, _ = two_tasks(store)
    shuffle = Shuffle(manifest=decided, stores={None: store})
    frames: list[Shuffle] = []

    with pytest.raises(UserError, match=r"to_spark\(\)(.|\n)*ws.open_shuffle"):
        shuffle.to_spark()
    replace(shuffle, frame_of=frames.append).to_spark()  # type: ignore[arg-type]

    assert frames == [shuffle]
