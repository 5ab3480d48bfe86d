"""A queue as its member meets it, over a disk in memory."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.reads.queue.queue_kit import (
    TEXT,
    WIDE,
    Row,
    batch_of,
    everything,
    fake_queue,
    limits,
    merged,
    rolled_back,
    rows_of,
    shown,
    stretch,
    tags,
    window,
)

from millrace.errors import StorageError
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, RowsAccepted
from millrace.testing.fake_queue_disk import FakeQueueDisk

A, B = tags(0, 2)
C = tags(1, 1)[0]


def send(queue: Queue, *blocks: list[Row], stream: int = 0, first: int = 1) -> None:
    """Each list as a block of its own."""
    for number, rows in enumerate(blocks, first):
        queue.handle(stream, QueueRows(number, batch_of(rows)))
        queue.handle(stream, Flush(number))


def test_rows_above_what_was_shown_and_up_to_what_is_shown_are_visible() -> None:
    queue, _ = fake_queue()
    rows = stretch(A, 1, [10, 20, 30, 40])
    send(queue, rows)
    assert rows_of(queue.read(window((A, 1, 10, 30)))) == rows[1:3]
    assert rows_of(queue.read(window((A, 1, 30, 40)))) == rows[3:]
    assert queue.read(window((A, 1, 40, 50))) == []
    assert queue.read(window((A, 2, 0, 50), (B, 1, 0, 50))) == []
    assert queue.read(window()) == []


def test_rows_that_were_released_do_not_come_again_with_the_rest_of_their_block() -> None:
    queue, _ = fake_queue()
    rows = stretch(A, 1, range(1, 11))
    send(queue, rows)
    queue.release(shown({(A, 1): 3}), rolled_back())
    assert queue.stats().rows == 10, "most of the block is left, so it was not moved"
    assert rows_of(queue.read(window((A, 1, 3, 10)))) == rows[3:]
    queue.release(shown({(A, 1): 8}), rolled_back())
    assert queue.stats().rows == 2
    assert rows_of(queue.read(window((A, 1, 8, 10)))) == rows[8:]


def test_a_block_goes_when_all_its_producers_are_shown_by_one_checkpoint_or_another() -> None:
    queue, _ = fake_queue()
    both = [*stretch(A, 1, range(1, 4)), *stretch(B, 2, range(4, 10))]
    send(queue, both, stretch(A, 3, [20]))
    queue.release(shown({(A, 1): 3}), rolled_back())
    assert queue.stats().rows == 10
    queue.release(shown({(B, 2): 9}), rolled_back())
    assert queue.stats().rows == 1, "the first release is remembered"
    assert len(queue._shown) == 0, "no row is left that it could be about"
    queue.release(shown({(A, 3): 20}), rolled_back())
    assert queue.stats().blocks == 0


def test_a_rolled_back_row_never_appears_with_its_producers_next_commit() -> None:
    """Last commit 10, rows 15 and 18, rollback, row 25, ACK 30 shows 25 alone."""
    queue, _ = fake_queue()
    send(queue, stretch(A, 1, [15, 18], 4), stretch(A, 2, [16], 7), stretch(A, 1, [25], 8))
    gone = (A, 1, 4, 6, 18)
    found = rows_of(queue.read(window((A, 1, 10, 30), (A, 2, 0, 16), gone=[gone])))
    assert found == [Row(A, 7, 2, 16), Row(A, 8, 1, 25)]

    queue.release(shown({(A, 1): 10, (A, 2): 16}), rolled_back([gone]))
    assert queue.stats().rows == 1
    assert rows_of(queue.read(window((A, 1, 10, 30), gone=[gone]))) == [Row(A, 8, 1, 25)]


def test_rows_come_by_priority_then_clock_plus_delay_and_each_tag_by_offset() -> None:
    bindings = [BindingOrder(0, 0), BindingOrder(0, 100), BindingOrder(7, 0)]
    queue = Queue(FakeQueueDisk(), limits(), 1, bindings)
    first = [Row(A, 0, 1, 50), Row(A, 1, 2, 20), Row(A, 2, 1, 60)]  # another producer is behind
    second = [Row(B, 0, 1, 30), Row(B, 1, 1, 50), Row(B, 2, 1, 55)]
    delayed = stretch(C, 1, [1, 2])
    urgent = stretch(tags(2, 1)[0], 1, [900])
    send(queue, first, second, delayed, urgent)
    found = rows_of(queue.read(everything([*first, *second, *delayed, *urgent])))
    assert [(row.tag, row.offset) for row in found] == [
        (urgent[0].tag, 0),
        (B, 0),
        (A, 0),
        (A, 1),
        (B, 1),
        (B, 2),
        (A, 2),
        (C, 0),
        (C, 1),
    ]
    assert found == merged([*first, *second, *delayed, *urgent], bindings)


def test_rows_of_one_clock_come_by_tag_also_from_block_to_block() -> None:
    queue, _ = fake_queue()
    send(queue, stretch(B, 1, [4, 5]), stretch(A, 1, [5, 6]))
    found = rows_of(queue.read(window((A, 1, 0, 9), (B, 1, 0, 9))))
    assert found == [Row(B, 0, 1, 4), Row(A, 0, 1, 5), Row(B, 1, 1, 5), Row(A, 1, 1, 6)]


def test_rows_of_different_schemas_take_turns_and_neighbours_share_a_batch() -> None:
    queue, _ = fake_queue()
    queue.handle(0, QueueRows(1, batch_of(stretch(A, 1, [1, 2, 7, 8]), TEXT)))
    queue.handle(0, QueueRows(2, batch_of(stretch(C, 1, [3, 4, 9]), WIDE)))
    queue.handle(0, Flush(1))
    batches = queue.read(window((A, 1, 0, 99), (C, 1, 0, 99)))
    assert [batch.schema for batch in batches] == [TEXT, WIDE, TEXT, WIDE]
    clocks = [batch.column("_mr_clock").to_pylist() for batch in batches]
    assert clocks == [[1, 2], [3, 4], [7, 8], [9]]


def test_small_blocks_in_order_come_as_one_batch() -> None:
    queue, _ = fake_queue()
    blocks = [stretch(A, 1, [n], n) for n in range(1, 101)]
    send(queue, *blocks)
    (batch,) = queue.read(window((A, 1, 0, 100)))
    assert rows_of([batch]) == [row for rows in blocks for row in rows]


def test_a_large_checkpoint_is_streamed() -> None:
    """With slices that are a little apart, only what lies between them is held."""
    queue, disk = fake_queue(2, batch_rows_target=100)
    for number in range(1, 51):
        base = 2000 * number
        early = stretch(A, 1, range(base, base + 1200), base)
        late = stretch(B, 1, range(base + 1000, base + 2200), base)
        send(queue, early, stream=0, first=number)
        send(queue, late, stream=1, first=number)
    assert queue.stats().blocks == 100
    batches = queue.batches(window((A, 1, 0, 10**9), (B, 1, 0, 10**9)))
    before = pa.total_allocated_bytes()
    last, rows, most = 0, 0, 0
    for batch in batches:
        clocks = batch.column("_mr_clock").to_numpy()
        assert clocks[0] >= last
        assert (np.diff(clocks.astype(np.int64)) >= 0).all()
        last, rows = clocks[-1], rows + batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
        del clocks, batch
    assert rows == 120_000
    assert most < 1_500_000 < disk.used_bytes() / 3


def test_a_release_between_two_batches_changes_nothing() -> None:
    queue, disk = fake_queue(segment_bytes_target=30_000)
    blocks = [stretch(A, 1, range(n, n + 2000), n) for n in range(1, 20_001, 2000)]
    send(queue, *blocks)
    stream = queue.batches(window((A, 1, 0, 20_000)))
    found = rows_of([next(stream)])
    queue.release(shown({(A, 1): 20_000}), rolled_back())
    assert disk.segments == {}
    found += rows_of(list(stream))
    assert found == [row for rows in blocks for row in rows]


def test_rows_wait_at_the_limit_and_are_stored_when_there_is_room() -> None:
    queue, _ = fake_queue(2, disk_bytes_max=3000)
    send(queue, stretch(A, 1, range(1, 100)))
    assert queue.is_full()
    assert queue.handle(0, QueueRows(2, batch_of(stretch(A, 1, [200], 200)))) == []
    assert queue.handle(1, QueueRows(1, batch_of(stretch(B, 1, [1])))) == []
    assert queue.handle(1, Flush(1)) == []
    assert queue.handle(0, Flush(2)) == []
    assert queue.stats().held_messages == 4

    replies = queue.release(shown({(A, 1): 99}), rolled_back())

    assert replies == [(0, RowsAccepted(2)), (1, RowsAccepted(1)), (1, Flushed(1)), (0, Flushed(2))]
    assert not queue.is_full()
    assert rows_of(queue.read(window((A, 1, 99, 200), (B, 1, 0, 1)))) == [
        Row(B, 0, 1, 1),
        Row(A, 200, 1, 200),
    ]


def test_recovery_stages_whatever_comes() -> None:
    queue, _ = fake_queue(disk_bytes_max=2000)
    send(queue, stretch(A, 1, range(1, 100)))
    assert queue.handle(0, QueueRows(2, batch_of(stretch(A, 1, [200], 200)))) == []
    assert queue.set_disk_limit(is_on=False) == [(0, RowsAccepted(2))]
    assert queue.handle(0, QueueRows(3, batch_of(stretch(A, 1, [201], 201)))) == [
        (0, RowsAccepted(3))
    ]
    assert not queue.is_full()
    assert queue.set_disk_limit(is_on=True) == []
    assert queue.is_full()
    assert queue.handle(0, QueueRows(4, batch_of(stretch(A, 1, [202], 202)))) == []
    assert queue.on_end(0) == [(0, RowsAccepted(4))]


def test_the_first_failure_of_the_disk_is_the_queues_end() -> None:
    queue, _ = fake_queue(disk=FakeQueueDisk(fails_at_append=2))
    send(queue, stretch(A, 1, [1]))
    queue.handle(0, QueueRows(2, batch_of(stretch(A, 1, [2], 1))))
    for _ in range(2):
        with pytest.raises(StorageError, match="it was to fail here"):
            queue.handle(0, Flush(2))
    with pytest.raises(StorageError, match="it was to fail here"):
        queue.release(shown({}), rolled_back())
    queue.close()
    with pytest.raises(StorageError, match="closed"):
        queue.read(window())


def test_a_release_looks_only_at_blocks_of_which_something_died() -> None:
    queue, disk = fake_queue(block_bytes_target=2000)
    open_rows = [stretch(A, 9, range(n, n + 10), n) for n in range(1, 200, 10)]
    mixed = [Row(B, n, 1 if n % 3 else 2, n) for n in range(1, 31)]
    send(queue, *open_rows, mixed)
    maps = disk.maps
    queue.release(shown({(C, 1): 5}), rolled_back())
    assert disk.maps == maps, "nothing died"
    queue.release(shown({(C, 1): 5, (B, 2): 3}), rolled_back())
    assert disk.maps == maps, "too little died to look"
    queue.release(shown({(B, 1): 31, (B, 2): 3}), rolled_back())
    assert disk.maps <= maps + 2, "one block is looked at, and moved on"
    found = rows_of(queue.read(everything([Row(B, 0, 2, 1)])))
    assert found == [row for row in mixed if row.producer == 2 and row.clock > 3]


def test_small_blocks_that_stay_become_fewer() -> None:
    """A transaction grows by a row with each flush while another binding's rows come and go."""
    queue, disk = fake_queue()
    rows = []
    for number in range(1, 301):
        rows += stretch(A, 9, [number], number)
        queue.handle(0, QueueRows(2 * number - 1, batch_of(rows[-1:])))
        queue.handle(0, QueueRows(2 * number, batch_of(stretch(C, 1, [number], number))))
        queue.handle(0, Flush(number))
        queue.release(shown({(C, 1): number}), rolled_back())
    assert queue.stats().blocks <= 15
    assert queue.used_bytes() == disk.used_bytes() <= 40_000
    assert rows_of(queue.read(window((A, 9, 0, 300)))) == rows


def test_what_is_moved_keeps_its_place_among_its_tags_rows() -> None:
    """A producer whose clocks are behind comes second in its journal, moved or not."""
    queue, _ = fake_queue()
    ahead, behind = Row(A, 0, 1, 100), Row(A, 11, 2, 50)
    send(queue, [ahead, *stretch(A, 3, range(1, 11), 1)], [behind])
    queue.release(shown({(A, 3): 10}), rolled_back())
    assert queue.stats().rows == 2, "the first block was moved"
    assert rows_of(queue.read(window((A, 1, 0, 100), (A, 2, 0, 50)))) == [ahead, behind]


def test_what_is_moved_becomes_one_only_with_its_neighbours() -> None:
    queue, _ = fake_queue()
    first, last = Row(A, 0, 1, 10), Row(A, 40, 1, 20)
    between = stretch(A, 2, range(50, 70), 11)
    consumed = [stretch(A, 3, range(1, 10), 1), stretch(A, 3, range(30, 40), 41)]
    send(queue, [first, *consumed[0]], between, [last, *consumed[1]])
    queue.release(shown({(A, 3): 40}), rolled_back())
    assert queue.stats().rows == 22, "the blocks around were moved"
    found = rows_of(queue.read(window((A, 1, 0, 20), (A, 2, 0, 70))))
    assert found == [first, *between, last]


def test_many_tags_in_a_block_are_told_apart() -> None:
    queue, _ = fake_queue()
    many = tags(0, 500)
    rows = [Row(tag, n, 1, 1000 * n + place) for n in range(8) for place, tag in enumerate(many)]
    send(queue, rows)
    odd = [(tag, 1, 2500, 6500) for tag in many[::2]]
    found = rows_of(queue.read(window(*odd)))
    assert found == [row for row in rows if row.tag in set(many[::2]) and 2500 < row.clock <= 6500]

    queue.release(shown({(tag, 1): 7000 for tag in many}), rolled_back())
    left = [row for row in rows if row.clock > 7000]
    assert queue.stats().rows == len(left)
    assert rows_of(queue.read(window(*((tag, 1, 7000, 9999) for tag in many)))) == left


def test_streams_may_be_driven_from_several_threads_while_others_read() -> None:
    queue, _ = fake_queue(4, segment_bytes_target=20_000, block_bytes_target=4_000)
    many = tags(0, 4)
    failures: list[BaseException] = []
    committed: dict[tuple[int, int], int] = {}
    lock = threading.Lock()

    def drive(stream: int) -> None:
        try:
            for number in range(1, 101):
                rows = stretch(many[stream], 1, range(10 * number, 10 * number + 10), 10 * number)
                queue.handle(stream, QueueRows(number, batch_of(rows)))
                queue.handle(stream, Flush(number))
                assert (
                    rows_of(queue.read(window((many[stream], 1, 10 * number - 1, 10**6)))) == rows
                )
                with lock:  # checkpoints are committed one after the other
                    committed[many[stream], 1] = 10 * number + 9
                    queue.release(shown(committed), rolled_back())
        except BaseException as error:  # noqa: BLE001 - for the test to see
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert queue.stats().blocks == 0
