"""Laws of live reads: every reader sees exactly its rows, whatever falls together with what."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.reads.live.ring_kit import LIMITS, Story

from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag, ProducerId, Stamp, stamp_rows
from millrace.journal.core.values import Fetched, JournalInfo
from millrace.keys.key_ranges import KEY_MAX, WHOLE, KeyRange, tile, unsigned
from millrace.keys.spark_hash import hash32
from millrace.reads.live.range_rows import cut, share
from millrace.reads.live.ring import FollowerGone, ReplayDone
from millrace.reads.live.waiting_rows import SubscriberId
from millrace.reads.model import labels

# Machines differ in speed; the laws do not.
LAWS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = ["append", "join", "replay", "leave", "want", "take", "finish", "cancel", "pass", "tick"]
NAMES += ["drive"] * 4
SMALL = replace(
    LIMITS, read_rows_max=2, read_bytes_max=20, channel_rows_max=4, channel_bytes_max=40
)
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 30), st.integers(0, 30)), max_size=60
)
PLACES = [0, 1, 2**30, 2**31 - 1, 2**31, 2**32 - 1]
RANGES = [WHOLE, *tile(2), *tile(3), KeyRange(0, 0), KeyRange(KEY_MAX, KEY_MAX)]


def pick(of: dict[int, object] | dict[SubscriberId, object], number: int) -> int:
    return list(of)[number % len(of)]


def play(story: Story, name: str, first: int, second: int) -> None:
    """One step, if it can be made now."""
    match name:
        case "append":
            story.append(*[PLACES[(first + n) % 6] for n in range(second % 7)], gap=first % 3)
        case "join":
            story.join(RANGES[first % len(RANGES)], second % (story.end + 1))
        case "replay":
            begin = second % (story.end + 1)
            story.join(RANGES[second % len(RANGES)], begin, begin + first)
        case "finish" | "cancel" if story.reading:
            number = pick(story.reading, first)  # type: ignore[arg-type]
            story.finish(number) if name == "finish" else story.cancel(number)
        case "leave" | "want" | "take" | "drive" if story.readers:
            who = SubscriberId(pick(story.readers, first))  # type: ignore[arg-type]
            if name == "leave":
                story.leave(who)
            elif name == "drive":
                story.drive(who)
            elif name == "want" or story.channels[who]:
                story.want(who)
        case "pass":
            story.now_ms += first
        case "tick":
            for who in story.tick():
                story.leave(who)
        case _:
            pass


def check_so_far(story: Story) -> None:
    for who, mine in story.readers.items():
        assert mine.got == story.expected(who, mine.at)
        waiting = [row for rows, _ in story.channels[who] for row in rows]
        known = story.ring.subscribers.get(who)
        if known is not None:
            assert mine.got + waiting == story.expected(who, known.next)
            assert len(waiting) == known.rows <= story.limits.channel_rows_max


@settings(LAWS, max_examples=examples(400))
@given(STEPS)
@example([("append", 0, 6), ("join", 0, 0), ("want", 0, 0), ("join", 1, 0), ("finish", 0, 0)])
def test_every_reader_sees_exactly_its_rows_in_order(
    steps: list[tuple[str, int, int]],
) -> None:
    story = Story(SMALL)
    for name, first, second in steps:
        play(story, name, first, second)
        check_so_far(story)

    for number in list(story.reading):
        story.finish(number)
    for who in list(story.readers):
        last = story.run(who)
        mine = story.readers[who]
        assert not isinstance(last, FollowerGone)
        if mine.end is None:
            assert mine.got == story.expected(who, story.end)
        elif isinstance(last, ReplayDone):
            assert mine.got == story.expected(who, mine.end)
        else:
            assert mine.end > story.end
            assert mine.got == story.expected(who, story.end)


@settings(LAWS, max_examples=examples(200))
@given(STEPS)
def test_once_all_are_at_the_end_one_read_is_enough_for_all(
    steps: list[tuple[str, int, int]],
) -> None:
    story = Story(SMALL)
    for name, first, second in steps:
        play(story, name, first, second)
    for number in list(story.reading):
        story.finish(number)
    for who in list(story.readers):
        if story.readers[who].end is not None:
            story.leave(who)
    for who in story.readers:
        story.run(who)
    before = story.ring.reads

    story.append(*PLACES[:2])
    for who in story.readers:
        story.run(who)

    assert story.ring.reads - before == (1 if story.readers else 0)


# Sharing.

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
VALUES = st.lists(
    st.tuples(st.one_of(st.none(), st.integers(-5, 5)), st.sampled_from(["", "x", "y"])),
    max_size=30,
)


def stored(values: list[tuple[int | None, str]], first: int = 0) -> pa.RecordBatch:
    columns = [pa.array([a for a, _ in values], pa.int64()), pa.array([b for _, b in values])]
    stamp = Stamp(
        first_offset=Offset(first),
        producer=ProducerId(1),
        first_clock=Clock(1),
        flag=Flag.OUTSIDE,
    )
    return stamp_rows(pa.record_batch(columns, schema=SCHEMA), stamp)


@settings(LAWS)
@given(st.lists(VALUES, max_size=4), st.integers(1, 9), st.permutations(["a", "b"]))
def test_ranges_that_tile_share_every_row_once(
    pieces: list[list[tuple[int | None, str]]], count: int, keys: list[str]
) -> None:
    batches, at = [], 0
    for values in pieces:
        batches.append(stored(values, at))
        at += len(values)
    ranges = {SubscriberId(n): range_ for n, range_ in enumerate([*tile(count), WHOLE])}

    found = share(batches, keys, ranges)

    everything = [row for batch in batches for row in batch.to_pylist()]
    parts = {who: [r for b in mine.batches for r in b.to_pylist()] for who, mine in found.items()}
    sizes = {who: mine.size for who, mine in found.items()}
    assert {who: size.rows for who, size in sizes.items()} == {w: len(p) for w, p in parts.items()}
    assert all((size.bytes > 0) == (size.rows > 0) for size in sizes.values())
    assert parts.pop(SubscriberId(count)) == everything
    rows = [row for mine in parts.values() for row in mine]
    assert sorted(rows, key=lambda row: row["_mr_offset"]) == everything
    for who, mine in parts.items():
        assert mine == sorted(mine, key=lambda row: row["_mr_offset"])
        for batch in found[who].batches:
            assert ranges[who].mask(unsigned(hash32(batch, keys))).all()


@settings(LAWS)
@given(
    st.lists(VALUES, max_size=4),
    st.lists(st.tuples(st.integers(0, KEY_MAX), st.integers(0, KEY_MAX)), max_size=8),
)
def test_any_ranges_get_just_their_rows(
    pieces: list[list[tuple[int | None, str]]], bounds: list[tuple[int, int]]
) -> None:
    batches = [stored(values, 100 * number) for number, values in enumerate(pieces)]
    points = [int(place) for batch in batches for place in unsigned(hash32(batch, "a"))[:2]]
    some = [KeyRange(min(two), max(two)) for two in bounds] + [KeyRange(p, p) for p in points]
    ranges = {SubscriberId(number): range_ for number, range_ in enumerate(some)}

    found = share(batches, ["a"], ranges)

    for who, range_ in ranges.items():
        expected = [
            offset
            for batch in batches
            for offset, place in zip(
                batch["_mr_offset"].to_pylist(), unsigned(hash32(batch, "a")).tolist(), strict=True
            )
            if range_.contains(place)
        ]
        assert [o for b in found[who].batches for o in b["_mr_offset"].to_pylist()] == expected


@settings(LAWS)
@given(st.lists(VALUES, max_size=4), st.integers(0, 130))
def test_what_was_read_is_cut_at_any_offset(
    pieces: list[list[tuple[int | None, str]]], bound: int
) -> None:
    batches, at = [], 0
    for values in pieces:
        if values:
            batches.append(stored(values, at))
            at += len(values) + 1
    whole = Fetched(
        journal="j",
        id=JournalId(1),
        schema=SCHEMA,
        batches=tuple(batches),
        next_offset=Offset(at),
        end_offset=Offset(at),
    )

    kept, after = cut(whole, Offset(bound))

    found = [offset for batch in kept for offset in batch["_mr_offset"].to_pylist()]
    offsets = [offset for batch in batches for offset in batch["_mr_offset"].to_pylist()]
    assert found == [offset for offset in offsets if offset < bound]
    assert after == min(bound, at)
    assert cut(whole, None) == (whole.batches, at)


# Labels.

KINDS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.decimal128(30, 3): st.decimals(-(10**8), 10**8, places=3),
}
COLUMNS = ["a", "b", "c"]


@st.composite
def journals(draw: st.DrawFn) -> tuple[JournalInfo, pa.RecordBatch]:
    """A journal whose labels hold for its rows, or are no values of the columns at all."""
    kinds = {name: draw(st.sampled_from(list(KINDS))) for name in COLUMNS}
    count = draw(st.integers(1, 4))
    found, columns = {}, {}
    for name, kind in kinds.items():
        text = draw(st.one_of(st.none(), st.text(max_size=4), KINDS[kind].map(str)))
        fixed = None if text is None else as_value(text, kind)
        if text is not None:
            found[name] = text
        if fixed is not None:
            columns[name] = pa.concat_arrays([fixed] * count)
        else:
            some = st.lists(st.one_of(st.none(), KINDS[kind]), min_size=count, max_size=count)
            columns[name] = pa.array(draw(some), kind)
    schema = pa.schema(list(kinds.items()))
    info = JournalInfo(id=JournalId(1), name="j", schema=schema, labels=found, created_at_ms=0)
    return info, pa.record_batch(list(columns.values()), schema=schema)


def as_value(text: str, kind: pa.DataType) -> pa.Array | None:
    try:
        return pa.array([text], pa.string()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


@settings(LAWS, max_examples=examples(120))
@given(journals(), st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True), st.data())
def test_no_journal_is_skipped_that_holds_a_row_asked_for(
    made: tuple[JournalInfo, pa.RecordBatch], keys: list[str], data: st.DataObject
) -> None:
    info, rows = made
    places = unsigned(hash32(rows, keys))
    range_ = data.draw(st.sampled_from([*tile(2), *tile(7)]))
    row = data.draw(st.integers(0, rows.num_rows - 1))
    key = rows.slice(row, 1).select(sorted(keys))
    point = KeyRange(labels.place_of(key), labels.place_of(key))

    if range_.mask(places).any():
        assert labels.can_hold(info, keys, range_)
    assert labels.can_hold(info, sorted(keys), point, key)
    kept = labels.with_key(rows, labels.key_of(info, key))
    assert kept.num_rows >= 1
    assert point.mask(unsigned(hash32(kept, sorted(keys)))).all()


@settings(LAWS, max_examples=examples(80))
@given(journals(), st.sampled_from(COLUMNS))
def test_what_labels_fix_is_what_rows_hash_to(
    made: tuple[JournalInfo, pa.RecordBatch], key: str
) -> None:
    info, rows = made
    place = labels.fixed_place(info, [key])

    if key in info.labels and as_value(info.labels[key], info.schema.field(key).type) is not None:
        assert place is not None
        assert set(unsigned(hash32(rows, [key])).tolist()) == {place}
        around = [each for each in tile(16) if labels.can_hold(info, [key], each)]
        assert len(around) == 1
    else:
        assert place is None
        assert all(labels.can_hold(info, [key], each) for each in tile(16))
