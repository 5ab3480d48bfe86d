"""What a queue gives is what a plain list of rows would give."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.reads.queue.queue_kit import (
    TEXT,
    WIDE,
    Pair,
    Range,
    Row,
    batch_of,
    limits,
    merged,
    rolled_back,
    rows_of,
    shown,
    tags,
    window,
)

from millrace.reads.model.clock_windows import Visible
from millrace.reads.model.tags import binding_of
from millrace.reads.queue.queue import Queue
from millrace.reads.queue.queue_limits import BindingOrder
from millrace.reads.queue.queue_messages import Flush, Flushed, QueueRows, Replies, RowsAccepted
from millrace.testing.fake_queue_disk import FakeQueueDisk

BINDINGS = [BindingOrder(0, 0), BindingOrder(0, 7), BindingOrder(5, 0)]
MESSAGE_BYTES_MAX = 8_000
OPERATIONS = st.lists(
    st.sampled_from(
        ["rows"] * 8 + ["flush"] * 4 + ["show", "show", "release", "roll back", "hold"]
    ),
    min_size=12,
    max_size=60,
)


class World:
    """A queue, and everything that was sent to it as a list."""

    def __init__(self, random: Random, *, can_punch: bool, limit: int) -> None:
        self.random = random
        self.disk = FakeQueueDisk(can_punch=can_punch)
        self.limit = limit
        self.streams = random.randint(1, 3)
        sizes = limits(
            disk_bytes_max=limit,
            segment_bytes_target=6_000,
            block_bytes_target=random.choice([2_500, 50_000]),
            block_rows_target=random.choice([1, 6, 40]),
            batch_rows_target=random.choice([1, 8, 100]),
        )
        self.queue = Queue(self.disk, sizes, self.streams, BINDINGS)
        self.tags = [tag for binding in range(3) for tag in tags(binding, random.choice([1, 3]))]
        if random.random() < 0.3:
            self.tags = tags(0, 90)
        self.stream_of = {tag: random.randrange(self.streams) for tag in self.tags}
        self.next_offset = dict.fromkeys(self.tags, 0)
        self.clocks: dict[Pair, int] = {}
        self.time = 0
        self.sent: dict[int, list[list[Row]]] = {stream: [] for stream in range(self.streams)}
        self.cycles: dict[int, list[int]] = {stream: [] for stream in range(self.streams)}
        """For each flush of a stream, how many messages came before it."""
        self.taken = dict.fromkeys(range(self.streams), 0)
        self.flushed = dict.fromkeys(range(self.streams), 0)
        self.shown: dict[Pair, int] = {}
        self.released: dict[Pair, int] = {}
        self.gone: list[Range] = []
        self.given: list[Row] = []
        self.in_hand: list[tuple[list[Row], object]] = []

    def staged(self, stream: int | None = None) -> list[Row]:
        """Rows that a flush was answered for."""
        streams = range(self.streams) if stream is None else [stream]
        parts = [self.sent[each][: self._safe(each)] for each in streams]
        return [row for messages in parts for message in messages for row in message]

    def _safe(self, stream: int) -> int:
        done = self.flushed[stream]
        return self.cycles[stream][done - 1] if done else 0

    def on_replies(self, replies: Replies) -> None:
        for stream, reply in replies:
            match reply:
                case RowsAccepted(number):
                    assert number == self.taken[stream] + 1
                    self.taken[stream] = number
                case Flushed(cycle):
                    assert cycle == self.flushed[stream] + 1
                    assert self.taken[stream] >= self.cycles[stream][cycle - 1]
                    self.flushed[stream] = cycle

    def is_gone(self, row: Row) -> bool:
        return any(
            row.pair == (tag, producer) and begin <= row.offset < end
            for tag, producer, begin, end, _ in self.gone
        )

    def send(self) -> None:
        stream = self.random.randrange(self.streams)
        binding = self.random.randrange(3)
        mine = [t for t in self.tags if self.stream_of[t] == stream and binding_of(t) == binding]
        count = self.random.choice([1, 3, 8, 20, 80]) if mine else 0
        rows = [self.make(self.random.choice(mine)) for _ in range(count)]
        self.sent[stream].append(rows)
        schema = TEXT if self.random.random() < 0.9 and binding else WIDE
        message = QueueRows(len(self.sent[stream]), batch_of(rows, schema))
        self.on_replies(self.queue.handle(stream, message))

    def make(self, tag: int) -> Row:
        self.time += self.random.choice([0, 1, 1, 5])
        producer = self.random.randint(1, 3)
        late = self.random.choice([0, 0, 10])
        clock = max(self.clocks.get((tag, producer), 0) + 1, 1 + self.time - late)
        self.clocks[tag, producer] = clock
        offset = self.next_offset[tag]
        self.next_offset[tag] += self.random.choice([1, 1, 2])
        return Row(tag, offset, producer, clock)

    def flush(self) -> None:
        stream = self.random.randrange(self.streams)
        self.cycles[stream].append(len(self.sent[stream]))
        self.on_replies(self.queue.handle(stream, Flush(len(self.cycles[stream]))))

    def roll_back(self) -> None:
        """All that a pair has open is rolled back; its producer goes on with later clocks."""
        open_ones = [row for row in self.staged() if row.clock > self.shown.get(row.pair, 0)]
        staged = set(self.staged())
        unsent = {row.pair for row in self.everything() if row not in staged}
        pairs = sorted({row.pair for row in open_ones} - unsent)
        if pairs:
            pair = self.random.choice(pairs)
            mine = [row for row in open_ones if row.pair == pair and not self.is_gone(row)]
            if mine:
                highest = max(row.clock for row in mine)
                self.gone.append((*pair, mine[0].offset, mine[-1].offset + 1, highest))

    def everything(self) -> list[Row]:
        return [row for messages in self.sent.values() for rows in messages for row in rows]

    def show(self) -> None:
        """A checkpoint shows some more of some pairs: the same rows however often it is read."""
        before = dict(self.shown)
        staged = self.staged()
        for pair in sorted({row.pair for row in staged}):
            if self.random.random() < 0.7:
                clocks = [row.clock for row in staged if row.pair == pair]
                clock = clocks[-1] if self.random.random() < 0.6 else self.random.choice(clocks)
                self.shown[pair] = max(clock, self.shown.get(pair, 0))
        visible = self.visible(before, self.shown)
        batches = self.queue.read(visible)
        expected = [
            row
            for row in staged
            if before.get(row.pair, 0) < row.clock <= self.shown.get(row.pair, 0)
            and not self.is_gone(row)
        ]
        found = rows_of(batches)
        assert found == merged(expected, BINDINGS)
        assert rows_of(self.queue.read(visible)) == found
        few = self.random.randint(0, 5)
        assert rows_of(self.queue.read(visible, rows_max=few)) == found[:few]
        self.given += found
        if self.random.random() < 0.3:
            self.in_hand.append((found, batches))

    def visible(self, before: dict[Pair, int], now: dict[Pair, int]) -> Visible:
        pairs = [pair for pair in now if now[pair] > before.get(pair, 0)]
        rows = [(*pair, before.get(pair, 0), now[pair]) for pair in pairs]
        return window(*rows, gone=self.gone)

    def release(self) -> None:
        self.released = dict(self.shown)
        self.on_replies(self.queue.release(shown(self.released), rolled_back(self.gone)))

    def hold(self) -> None:
        """Let go of what was read: nothing of it changed."""
        for rows, batches in self.in_hand:
            assert rows_of(batches) == rows  # type: ignore[arg-type]
        self.in_hand.clear()

    def check(self) -> None:
        assert self.queue.used_bytes() <= self.limit + self.streams * MESSAGE_BYTES_MAX
        live = [row for row in self.staged() if row.clock > self.shown.get(row.pair, 0)]
        live = [row for row in live if not self.is_gone(row)]
        rows = [(*pair, self.shown.get(pair, 0), 2**64 - 1) for pair in {r.pair for r in live}]
        found = set(rows_of(self.queue.read(window(*rows, gone=self.gone))))
        assert found >= set(live)
        assert found <= set(self.everything())

    def finish(self) -> None:
        """Everything is flushed, shown and released: each row came once, and no disk is used."""
        self.on_replies(self.queue.set_disk_limit(is_on=False))
        for stream in range(self.streams):
            self.cycles[stream].append(len(self.sent[stream]))
            self.on_replies(self.queue.handle(stream, Flush(len(self.cycles[stream]))))
            assert self.taken[stream] == len(self.sent[stream])
        before, self.shown = self.shown, dict(self.clocks)
        self.given += rows_of(self.queue.read(self.visible(before, self.shown)))
        assert sorted(self.given) == sorted(r for r in self.everything() if not self.is_gone(r))
        self.hold()
        self.release()
        assert self.queue.stats().blocks == 0
        assert self.queue.used_bytes() == self.disk.used_bytes() == 0


@pytest.mark.parametrize("limit", [10**9, 12_000])
@settings(max_examples=examples(60), deadline=None)
@given(OPERATIONS, st.integers(0, 10**9), st.booleans())
def test_a_queue_gives_what_a_list_would(
    limit: int,
    operations: list[str],
    seed: int,
    can_punch: bool,  # noqa: FBT001
) -> None:
    world = World(Random(seed), can_punch=can_punch, limit=limit)  # noqa: S311 - a seed replays it
    steps = {
        "rows": world.send,
        "flush": world.flush,
        "show": world.show,
        "release": world.release,
        "roll back": world.roll_back,
        "hold": world.hold,
    }
    for operation in operations:
        steps[operation]()
        if operation in ("flush", "release"):
            world.check()
    world.finish()
