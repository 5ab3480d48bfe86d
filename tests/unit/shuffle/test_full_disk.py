"""A disk that is full while a map output is written, for real."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.shuffle.shuffle_kit import column, everything, values, write

from millrace.config import MIB, Config
from millrace.errors import StorageError
from millrace.ids import LATEST, AttemptId
from millrace.keys import HashPartitioner
from millrace.shuffle import reader
from millrace.shuffle.writer import begin_attempt, write_map_output
from millrace.storage.local import LocalStore

ATTEMPT = AttemptId.of(1, 0, 0, 1)
FULL = "No space left on device(.|\n)*to fix: the disk is full; free space"


def fill(disk: Path, *, leave_bytes: int = 0) -> Path:
    """Use up all space but this much."""
    path = disk / "ballast"
    with path.open("wb", buffering=0) as file:
        block = bytes(4096)
        try:
            while True:
                file.write(block)
        except OSError:
            pass
        file.truncate(max(0, file.tell() // 4096 * 4096 - leave_bytes))
    return path


def use_up_files(disk: Path) -> list[Path]:
    """Use up all file numbers, so that no file or folder can be made."""
    made: list[Path] = []
    try:
        while True:
            path = disk / f"ballast-{len(made)}"
            path.touch()
            made.append(path)
    except OSError:
        return made


def many_rows() -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(1)
    for _ in range(100):
        yield pa.record_batch({"x": random.integers(0, 2**60, 10_000)})


def test_a_disk_that_fills_up_in_mid_payload_leaves_nothing(small_disk: Path) -> None:
    store = LocalStore(str(small_disk / "mill"))
    limits = Config(task_memory_bytes_max=1 * MIB)

    with pytest.raises(StorageError, match=FULL):
        write(
            store,
            ATTEMPT,
            many_rows(),
            schema=column([]).schema,
            by=HashPartitioner("x", 4),
            config=limits,
        )

    assert everything(store) == set()
    write(store, ATTEMPT, column([1, 2, 3]), config=limits)
    assert values(store, ATTEMPT) == [1, 2, 3]


@pytest.mark.parametrize("leave_bytes", [0, 4096, 8192, 12288, 16384])
def test_a_full_disk_at_any_point_shows_all_or_nothing(small_disk: Path, leave_bytes: int) -> None:
    store = LocalStore(str(small_disk / "mill"))
    store.make_folder("shuffle")
    ballast = fill(small_disk, leave_bytes=leave_bytes)
    rows = column(range(400))

    try:
        write(store, ATTEMPT, rows, by=HashPartitioner("x", 2))
    except StorageError as error:
        assert "the disk is full" in str(error)  # noqa: PT017 - it may also succeed
        assert reader.latest_attempt(store, ATTEMPT.task) is None
        assert everything(store) == set()
        ballast.unlink()
        write(store, ATTEMPT, rows, by=HashPartitioner("x", 2))
    else:
        assert leave_bytes > 0

    assert values(store, ATTEMPT, LATEST) == list(range(400))


def test_a_disk_full_at_the_index_leaves_nothing(small_disk: Path) -> None:
    store = LocalStore(str(small_disk / "mill"))
    ballast: list[Path] = []

    def clock() -> int:
        ballast.append(fill(small_disk))
        return 1

    begin_attempt(store, ATTEMPT)
    with pytest.raises(StorageError, match=rf"(?s)creating .*index.json failed.*{FULL}"):
        write_map_output(
            store,
            ATTEMPT,
            column([1, 2, 3]).to_batches(),
            schema=column([]).schema,
            partitioner=HashPartitioner("x", 2),
            config=Config(),
            now_ms=clock,
        )

    assert everything(store) == set()
    ballast[0].unlink()
    write(store, ATTEMPT, column([1, 2, 3]))
    assert values(store, ATTEMPT) == [1, 2, 3]


def test_a_disk_with_no_file_left_to_make_can_still_be_cleaned_up(small_disk: Path) -> None:
    store = LocalStore(str(small_disk / "mill"))
    write(store, ATTEMPT, column([1, 2, 3]))
    ballast = use_up_files(small_disk)

    with pytest.raises(StorageError, match="the disk is full"):
        write(store, AttemptId.of(1, 0, 0, 2), column([4]))
    assert values(store, ATTEMPT) == [1, 2, 3]
    assert store.discard("shuffle/1/0/0/1")

    assert everything(store) == set()
    for path in ballast:
        path.unlink()
    write(store, ATTEMPT, column([5]))
    assert values(store, ATTEMPT) == [5]
