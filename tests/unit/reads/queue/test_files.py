"""Queues over real files: readable by pyarrow alone, freed as said, full when the disk is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.disks import mounted
from tests.unit.reads.queue.queue_kit import (
    TEXT,
    Row,
    batch_of,
    everything,
    limits,
    rolled_back,
    rows_of,
    shown,
    stretch,
    tags,
    window,
)

from millrace.config import KIB
from millrace.errors import StorageError
from millrace.reads.queue.blocks import SegmentNumber
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows
from millrace.reads.queue.segment_files import SegmentFiles

TAG, OTHER = tags(0, 2)
PAYLOAD = "x" * 1000
FORMAT = Path(__file__).parents[4] / "docs" / "format.md"


def queue_in(folder: Path, **changes: int) -> tuple[Queue, SegmentFiles]:
    disk = SegmentFiles(str(folder))
    return Queue(disk, limits(**changes), 1, [BindingOrder()]), disk


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def send(queue: Queue, *blocks: list[Row], first: int = 1) -> None:
    """Each list as a block of its own."""
    for number, rows in enumerate(blocks, first):
        queue.handle(0, QueueRows(number, batch_of(rows, payload=PAYLOAD)))
        queue.handle(0, Flush(number))


def read_with_pyarrow_alone(path: Path) -> list[tuple[int, pa.RecordBatch]]:
    """With what docs/format.md shows."""
    shown: dict[str, Any] = {}
    for block in re.findall(
        r"^```python\n(.*?)^```", FORMAT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if "def read_queue_file" in block:
            exec(block, shown)  # noqa: S102 - our own pages
    return list(shown["read_queue_file"](path))


def test_files_are_read_with_nothing_but_pyarrow(tmp_path: Path) -> None:
    queue, _ = queue_in(tmp_path)
    first, second = stretch(TAG, 1, [1, 2, 3]), stretch(OTHER, 2, [4, 5])
    queue.handle(0, QueueRows(1, batch_of(first)))
    queue.handle(0, Flush(1))
    queue.handle(0, QueueRows(2, batch_of(second)))
    assert queue.handle(0, Flush(2)) == [(0, Flushed(2))]

    (path,) = tmp_path.iterdir()
    assert path.name == "queue-1.ipc"
    blocks = read_with_pyarrow_alone(path)
    assert [lsn for lsn, _ in blocks] == [1, 2]
    assert [rows_of([batch]) for _, batch in blocks] == [first, second]
    assert all(batch.schema == TEXT for _, batch in blocks)


def test_a_dead_block_between_live_ones_is_punched_out(tmp_path: Path) -> None:
    queue, disk = queue_in(tmp_path)
    blocks = [stretch(TAG, n, range(500 * n, 500 * n + 500), 500 * n) for n in (1, 2, 3)]
    send(queue, *blocks)
    before = on_disk(tmp_path)

    queue.release(shown({(TAG, 2): 1499}), rolled_back())

    assert on_disk(tmp_path) <= before * 2 / 3 + 8 * KIB
    assert on_disk(tmp_path) == disk.used_bytes()
    assert abs(queue.used_bytes() - disk.used_bytes()) <= 4 * KIB
    assert rows_of(queue.read(everything(blocks[0] + blocks[2]))) == blocks[0] + blocks[2]
    (path,) = tmp_path.iterdir()
    assert [lsn for lsn, _ in read_with_pyarrow_alone(path)] == [1, 3]


def test_a_segment_without_live_blocks_is_unlinked(tmp_path: Path) -> None:
    queue, _ = queue_in(tmp_path, segment_bytes_target=100 * KIB)
    blocks = [stretch(TAG, 1, range(100 * n, 100 * n + 100), 100 * n) for n in range(1, 5)]
    send(queue, *blocks)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"queue-{n}.ipc" for n in (1, 2, 3, 4)]

    queue.release(shown({(TAG, 1): 399}), rolled_back())

    assert [path.name for path in tmp_path.iterdir()] == ["queue-4.ipc"]
    assert rows_of(queue.read(window((TAG, 1, 399, 499)))) == blocks[3]
    queue.release(shown({(TAG, 1): 499}), rolled_back())
    assert list(tmp_path.iterdir()) == []
    assert queue.used_bytes() == 0


def test_an_open_transaction_keeps_about_its_own_bytes_on_disk(tmp_path: Path) -> None:
    """One row in ten is of a transaction that stays open, over many segments."""
    queue, _ = queue_in(tmp_path, segment_bytes_target=1000 * KIB)
    open_rows: list[Row] = []
    for number in range(1, 21):
        rows = [
            Row(TAG, at, 9 if at % 10 == 0 else 1, at)
            for at in range(number * 400, number * 400 + 400)
        ]
        open_rows += [row for row in rows if row.producer == 9]
        send(queue, rows, first=number)
        queue.release(shown({(TAG, 1): rows[-1].clock}), rolled_back())
    own = batch_of(open_rows, payload=PAYLOAD).nbytes

    assert on_disk(tmp_path) <= 1.5 * own
    assert queue.stats().blocks <= 5
    assert rows_of(queue.read(window((TAG, 9, 0, 10_000)))) == open_rows

    queue.release(shown({(TAG, 1): 10_000, (TAG, 9): 10_000}), rolled_back())
    assert list(tmp_path.iterdir()) == []


def test_what_was_read_stays_what_it_was_while_somebody_has_it(tmp_path: Path) -> None:
    queue, _ = queue_in(tmp_path)
    blocks = [stretch(TAG, n, range(1, 301), 300 * n) for n in (1, 2)]
    send(queue, *blocks)
    in_hand = queue.read(window((TAG, 1, 0, 300)))
    full = on_disk(tmp_path)

    queue.release(shown({(TAG, 1): 300}), rolled_back())
    assert rows_of(in_hand) == blocks[0]
    assert on_disk(tmp_path) > full * 0.9, "bytes were given back under a reader"

    del in_hand
    queue.release(shown({(TAG, 1): 300}), rolled_back())
    assert on_disk(tmp_path) < full * 0.6


def test_what_was_read_outlives_its_segment(tmp_path: Path) -> None:
    queue, _ = queue_in(tmp_path)
    rows = stretch(TAG, 1, range(1, 301))
    send(queue, rows)
    in_hand = queue.read(everything(rows))

    queue.release(shown({(TAG, 1): 300}), rolled_back())
    queue.close()

    assert list(tmp_path.iterdir()) == []
    assert rows_of(in_hand) == rows


def test_a_block_that_is_visible_whole_is_not_copied(tmp_path: Path) -> None:
    queue, _ = queue_in(tmp_path)
    blocks = [stretch(TAG, 1, range(2000 * n, 2000 * n + 2000), 2000 * n) for n in (1, 2)]
    send(queue, *blocks)
    before = pa.total_allocated_bytes()

    found = queue.read(everything(blocks[0]))

    assert pa.total_allocated_bytes() - before < 64 * KIB
    assert rows_of(found) == blocks[0] + blocks[1]


def test_leftovers_of_earlier_queues_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("queue-1.ipc", "queue-77.ipc", "queue-01.ipc", "queue-x.ipc", "notes.txt"):
        (tmp_path / name).write_bytes(b"left")

    queue, _ = queue_in(tmp_path)
    send(queue, stretch(TAG, 1, [1]))
    queue.close()
    queue.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "notes.txt",
        "queue-01.ipc",
        "queue-x.ipc",
    ]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB, so that it can be filled for real."""
    with mounted(tmp_path / "disk", "size=2m,nr_inodes=200") as folder:
        yield folder


def test_a_full_disk_fails_the_queue_for_good(small_disk: Path) -> None:
    queue, _ = queue_in(small_disk)
    blocks = [stretch(TAG, 1, range(400 * n, 400 * n + 400), 400 * n) for n in range(1, 20)]
    with pytest.raises(StorageError, match="the disk is full; free space"):
        send(queue, *blocks)
    with pytest.raises(StorageError, match="the disk is full; free space"):
        queue.read(everything(blocks[0]))
    with pytest.raises(StorageError, match="the disk is full; free space"):
        queue.handle(0, Flush(99))
    queue.close()
    assert list(small_disk.iterdir()) == []


def test_punching_is_told_from_not_being_able_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there are no holes it is said once, and segments are emptied by moving what is left."""
    monkeypatch.setattr("millrace.reads.queue.segment_files._fallocate", lambda *_: 95)
    queue, disk = queue_in(tmp_path, segment_bytes_target=300 * KIB)
    kept: list[Row] = []
    for number in range(1, 31):
        rows = stretch(TAG, 1, range(100 * number, 100 * number + 100), 100 * number)
        few = stretch(OTHER, 2, [number], number)
        send(queue, rows, first=2 * number - 1)
        send(queue, few, first=2 * number)
        kept += few
        queue.release(shown({(TAG, 1): rows[-1].clock}), rolled_back())

    assert not disk.punch(SegmentNumber(max(disk._names)), 0, 64)
    assert [record.message for record in caplog.records] == [
        "queue files cannot have holes here; disk is freed a file later"
    ]
    assert on_disk(tmp_path) <= 2 * 300 * KIB + 200 * KIB
    assert rows_of(queue.read(everything(kept))) == kept
