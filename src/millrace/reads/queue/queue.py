"""A member's queue: stages rows of all slices on disk, and returns those that a checkpoint shows.

One object under one lock, with no thread of its own: the thread that received a message drives it.
Batches stay readable for as long as a caller holds them, even if their rows are released.

Invariant: the rows that a checkpoint shows are the same however often they are read, until it is
released; and a release changes nothing about the rows of later ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, assert_never

import numpy as np
import pyarrow as pa

from millrace.errors import StorageError
from millrace.reads.model.checkpoint import Checkpoint, RolledBack, ShownClock, merge
from millrace.reads.model.clock_windows import Visible
from millrace.reads.queue import block_compaction, row_order
from millrace.reads.queue.block_directory import Candidate, Directory
from millrace.reads.queue.blocks import (
    Block,
    Encoder,
    Lsn,
    decode,
    is_ordered,
    stamps_of,
    summarise,
)
from millrace.reads.queue.queue_disk import QueueDisk
from millrace.reads.queue.queue_limits import BindingOrder, QueueLimits
from millrace.reads.queue.queue_messages import Message, Replies
from millrace.reads.queue.queue_state import Action, Intake, StoreBlock, StreamReply
from millrace.reads.queue.segments import Freeing, Punch, Segments, Unlink
from millrace.reads.queue.visibility import Consumed, VisibilityView, pick

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The state of a queue in numbers."""

    blocks: int
    rows: int
    """In blocks; some of them may have been read."""
    segments: int
    used_bytes: int
    held_messages: int
    held_bytes: int
    is_full: bool


class Queue:
    """Takes messages of numbered streams; see the module."""

    def __init__(
        self, disk: QueueDisk, limits: QueueLimits, streams: int, bindings: Sequence[BindingOrder]
    ) -> None:
        self._disk = disk
        self._limits = limits
        self._bindings = tuple(bindings)
        self._lock = threading.Lock()
        self._intake = Intake(limits, streams)
        self._directory = Directory()
        self._segments = Segments(limits.segment_bytes_target)
        self._encoder = Encoder()
        self._last_lsn = Lsn(0)
        self._put_off: list[Punch] = []
        """Dead bytes that a caller still uses."""
        self._young: list[Lsn] = []
        """Blocks since the last release; then blocks that one release did not free."""
        self._aging: list[Lsn] = []
        self._shown = ShownClock.empty()
        """What was released, as far as blocks may have rows of it."""
        self._is_limit_on = True
        self._failure: Exception | None = None

    def handle(self, stream: int, message: Message) -> Replies:
        """Take a message that came on a stream; returns the replies, each to a stream."""
        with self._driven():
            is_full = self._is_full()
            return self._perform(self._intake.on_message(stream, message, is_full=is_full))

    def on_end(self, stream: int) -> Replies:
        """A stream has ended: the rows that it sent are stored, even above the limit."""
        with self._driven():
            return self._perform(self._intake.on_end(stream))

    def set_disk_limit(self, *, is_on: bool) -> Replies:
        """Keep to the disk limit, or accept rows beyond it."""
        with self._driven():
            self._is_limit_on = is_on
            return self._drain()

    def read(self, visible: Visible, *, rows_max: int | None = None) -> list[pa.RecordBatch]:
        """The rows that become visible, in order; at most the given number of them.

        A large checkpoint is better gone through with `batches`.
        """
        out: list[pa.RecordBatch] = []
        left = rows_max
        for batch in self.batches(visible):
            if left is not None and batch.num_rows >= left:
                return [*out, batch.slice(0, left)] if left else out
            out.append(batch)
            left = None if left is None else left - batch.num_rows
        return out

    def batches(self, visible: Visible) -> Iterator[pa.RecordBatch]:
        """The rows that become visible, in order, a batch at a time.

        Only rows that are out of order are kept in memory. Blocks that are visible whole and in
        order come without a copy. A later release does not change these rows.
        """
        with self._driven():
            view = VisibilityView(visible)
            pieces = [
                self._piece(candidate, view) for candidate in self._directory.candidates(view)
            ]
        ordered = row_order.in_order(pieces, self._bindings, self._limits)
        return row_order.together(ordered, self._limits.batch_rows_target)

    def release(self, shown: ShownClock, rolled_back: RolledBack) -> Replies:
        """Free what a committed checkpoint shows or says is rolled back.

        `shown` is what changed since the last release; `rolled_back` is whole.
        """
        with self._driven():
            self._punch_put_off()
            self._shown = merge(Checkpoint(shown=self._shown), Checkpoint(shown=shown)).shown
            consumed = Consumed(self._shown, rolled_back)
            review = self._directory.review(consumed)
            self._directory.remove(review.dead)
            self._free(review.dead)
            self._free(self._look_at(review.suspects, consumed))
            self._free(self._move_out_of_sparse(consumed))
            self._free(self._join_small(consumed))
            self._shown = self._directory.touching(self._shown)
            return self._drain()

    def used_bytes(self) -> int:
        """The bytes of the queue on disk, and of rows that it will write next."""
        with self._lock:
            return self._used()

    def is_full(self) -> bool:
        """Whether messages with rows are held back."""
        with self._lock:
            return self._is_full() or self._intake.held_messages > 0

    def stats(self) -> QueueStats:
        """The state of the queue in numbers."""
        with self._lock:
            return QueueStats(
                blocks=len(self._directory),
                rows=self._directory.rows,
                segments=len(self._segments),
                used_bytes=self._used(),
                held_messages=self._intake.held_messages,
                held_bytes=self._intake.held_bytes,
                is_full=self._is_full(),
            )

    def close(self) -> None:
        """Drop all files."""
        with self._lock:
            self._failure = StorageError("this queue was closed\n  to fix: open another")
            self._disk.close()

    @contextmanager
    def _driven(self) -> Iterator[None]:
        """Hold the lock. After an error every call fails: a change may be half done."""
        with self._lock:
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            try:
                yield
            except Exception as error:
                self._failure = type(error)(*error.args)
                raise

    def _used(self) -> int:
        return self._segments.used_bytes + self._intake.buffered_bytes

    def _is_full(self) -> bool:
        return self._is_limit_on and self._used() >= self._limits.disk_bytes_max

    def _drain(self) -> Replies:
        """Take messages that wait, as far as there is room."""
        replies: Replies = []
        while not self._is_full() and (actions := self._intake.on_room()):
            replies += self._perform(actions)
        return replies

    def _perform(self, actions: Iterable[Action]) -> Replies:
        replies: Replies = []
        for action in actions:
            match action:
                case StoreBlock(binding, batches):
                    self._last_lsn = Lsn(self._last_lsn + 1)
                    self._directory.add(self._written(self._last_lsn, binding, batches))
                case StreamReply(stream, reply):
                    replies.append((stream, reply))
                case _:
                    assert_never(action)
        return replies

    def _written(self, lsn: Lsn, binding: int, batches: list[pa.RecordBatch]) -> Block:
        """Write rows as a block."""
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        stamps = stamps_of(batch)
        segment = self._segments.segment_for_next()
        content = self._encoder.encode(batch, lsn)
        position = self._disk.append(segment, content)
        block = Block(
            lsn=lsn,
            segment=segment,
            position=position,
            length=len(content),
            binding=binding,
            schema=batch.schema,
            rows=batch.num_rows,
            is_ordered=is_ordered(stamps),
            summary=summarise(stamps),
        )
        self._segments.on_written(block)
        self._young.append(lsn)
        return block

    def _piece(self, candidate: Candidate, view: VisibilityView) -> row_order.VisibleBlock:
        """A block as `row_order` needs it; its bytes are mapped now, so they do not change."""
        block = candidate.block
        content = self._content(block)
        return row_order.VisibleBlock(
            binding=block.binding,
            floor=candidate.floor,
            ceiling=block.summary.highest,
            is_ordered=block.is_ordered,
            load=partial(decode, content)
            if candidate.is_whole
            else partial(_load_visible, content, view),
        )

    def _content(self, block: Block) -> pa.Buffer:
        return self._disk.map(block.segment, block.position, block.length)

    def _look_at(self, suspects: list[Block], consumed: Consumed) -> list[Block]:
        """Count the rows left in blocks, and move them if they are few. Returns dead blocks."""
        dead: list[Block] = []
        known: list[Block] = []
        remainders: list[block_compaction.Remainder] = []
        for block in suspects:
            stamps = stamps_of(decode(self._content(block)))
            live = consumed.live(stamps)
            count = int(np.count_nonzero(live))
            if not count:
                dead.append(block)
            elif block_compaction.is_worth_moving(block, count):
                remainders.append(block_compaction.Remainder(block, count))
            else:
                known.append(replace(block, summary=summarise(stamps.take(live))))
        self._directory.refresh(known)
        self._directory.remove(dead)
        return dead + self._move(remainders, consumed)

    def _move(
        self, remainders: list[block_compaction.Remainder], consumed: Consumed, *, must: bool = True
    ) -> list[Block]:
        """Write remainders again, behind everything, or only what becomes one with others.

        Returns the blocks that are no longer needed.
        """
        moved: list[Block] = []
        written: list[Block] = []
        target = self._limits.block_bytes_target
        for group in block_compaction.groups(remainders, self._directory, target):
            if len(group) == 1 and not must:
                continue
            decoded = [decode(self._content(block)) for block in group]
            live = [pick(batch, consumed.live(stamps_of(batch))) for batch in decoded]
            written.append(self._written(group[0].lsn, group[0].binding, live))
            moved += group
        self._directory.remove(moved)
        for block in written:
            self._directory.add(block)
        return moved

    def _move_out_of_sparse(self, consumed: Consumed) -> list[Block]:
        """Where nothing can be punched, empty segments that hold little."""
        sparse = set(self._segments.sparse())
        if not sparse:
            return []
        blocks = [block for block in self._directory if block.segment in sparse]
        return self._move(
            [block_compaction.Remainder(block, block.rows) for block in blocks], consumed
        )

    def _join_small(self, consumed: Consumed) -> list[Block]:
        """Make larger blocks of small ones that stay: of a transaction that grows row by row."""
        aging = list(dict.fromkeys(self._aging))  # one may have been written twice since
        now, later = aging[: block_compaction.JOINED_MAX], aging[block_compaction.JOINED_MAX :]
        stayed = [block for lsn in now if (block := self._directory.get(lsn)) is not None]
        self._aging, self._young = later + self._young, []
        small = [block for block in stayed if block_compaction.is_small(block, self._limits)]
        remainders = [block_compaction.Remainder(block, block.rows) for block in small]
        return self._move(remainders, consumed, must=False)

    def _free(self, blocks: list[Block]) -> None:
        """Give back the bytes of blocks that are no longer needed."""
        for action in self._segments.on_dead(blocks):
            self._give_back(action)

    def _give_back(self, action: Freeing) -> None:
        match action:
            case Unlink(segment):
                self._put_off = [punch for punch in self._put_off if punch.segment != segment]
                self._disk.unlink(segment)
            case Punch(segment, begin, end) if self._disk.is_held(segment, begin, end):
                self._put_off.append(action)
            case Punch(segment, begin, end):
                if not self._disk.punch(segment, begin, end) and self._segments.can_punch:
                    self._segments.can_punch = False
                    _LOG.warning("queue files cannot have holes here; disk is freed a file later")
            case _:
                assert_never(action)

    def _punch_put_off(self) -> None:
        waiting, self._put_off = self._put_off, []
        for punch in waiting:
            self._give_back(punch)


def _load_visible(content: pa.Buffer, view: VisibilityView) -> pa.RecordBatch:
    return view.shown(decode(content))
