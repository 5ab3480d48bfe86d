"""Who reads for whom in a ring, step by step."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.reads.live.ring_kit import KEY, LIMITS, Story

from millrace.errors import OffsetOutOfRange, Retriable
from millrace.journal.core.journal_names import Offset
from millrace.keys.key_ranges import WHOLE, tile
from millrace.reads.live.ring import (
    AtEnd,
    AwaitReader,
    FollowerGone,
    HoldBack,
    ReadRows,
    ReplayDone,
    Ring,
    TakeRows,
)
from millrace.reads.live.waiting_rows import SubscriberId


def test_ten_at_one_place_are_read_for_by_the_first_that_wants_rows() -> None:
    story = Story()
    readers = [story.join(range_) for range_ in tile(10)]
    story.append(0, 2**31, 2**32 - 1)

    first = story.want(readers[0])
    assert isinstance(first, ReadRows)
    assert list(first.members) == readers
    assert [story.want(who) for who in readers] == [AwaitReader()] * 10
    story.finish(first.number)
    for who in readers:
        assert story.run(who) == AtEnd(Offset(3))

    assert story.ring.reads == 1
    assert sum(len(story.readers[who].got) for who in readers) == 3


def test_one_behind_replays_up_to_where_the_others_are_and_joins_them_there() -> None:
    story = Story()
    ahead = story.join(WHOLE)
    story.append(1, 2, 3)
    story.run(ahead)
    behind = story.join(WHOLE, 1)
    story.append(4, 5)

    replay = story.want(behind)
    assert isinstance(replay, ReadRows)
    assert (replay.begin, replay.bound, list(replay.members)) == (1, 3, [behind])
    story.finish(replay.number)
    assert story.want(behind) == TakeRows()
    both = story.want(behind)

    assert isinstance(both, ReadRows)
    assert (both.begin, both.bound, list(both.members)) == (3, None, [ahead, behind])
    story.finish(both.number)
    story.run(ahead)
    story.run(behind)
    assert [offset for offset, _ in story.readers[behind].got] == [1, 2, 3, 4]
    assert [offset for offset, _ in story.readers[ahead].got] == [0, 1, 2, 3, 4]


def full_and_quick() -> tuple[Story, SubscriberId, SubscriberId]:
    """One whose channel is full, and one that wants more, both at offset 8."""
    story = Story()
    slow, quick = story.join(WHOLE), story.join(WHOLE)
    story.append(*range(16))
    for _ in range(2):
        read = story.want(quick)
        assert isinstance(read, ReadRows)
        story.finish(read.number)
        story.want(quick)
    assert story.ring.subscribers[slow].rows == LIMITS.channel_rows_max
    return story, slow, quick


def test_a_full_channel_holds_the_others_back_for_doubling_waits_and_no_longer() -> None:
    story, slow, quick = full_and_quick()
    waits = []
    while isinstance(step := story.want(quick), HoldBack):
        waits.append(step.wait_ms)
        story.now_ms += step.wait_ms

    assert waits == [1, 1, 2, 4, 2]
    assert sum(waits) == LIMITS.hold_ms_max
    assert isinstance(step, ReadRows)
    assert list(step.members) == [quick]
    story.finish(step.number)
    story.run(quick)
    assert len(story.readers[quick].got) == 16

    story.run(slow)
    assert [offset for offset, _ in story.readers[slow].got] == list(range(16))
    assert story.ring.subscribers[slow].held_ms == 0


def test_room_made_in_time_keeps_all_together() -> None:
    story, slow, quick = full_and_quick()
    assert isinstance(story.want(quick), HoldBack)
    story.now_ms += 1
    story.want(slow)

    read = story.want(quick)
    assert isinstance(read, ReadRows)
    assert set(read.members) == {slow, quick}
    assert story.ring.subscribers[slow].held_ms == 1


def test_who_is_slow_again_and_again_uses_up_one_allowance() -> None:
    """Else one that takes a little now and then would slow the others down for ever."""
    story, slow, quick = full_and_quick()
    held = 0
    story.append(*range(200))
    while len(story.readers[quick].got) < 216:
        step = story.want(quick)
        match step:
            case ReadRows():
                story.finish(step.number)
            case HoldBack():
                story.now_ms += 3
                held += 3
                if story.ring.subscribers[slow].rows:
                    story.want(slow)
            case _:
                pass

    assert held <= LIMITS.hold_ms_max + 3
    story.run(slow)
    assert [offset for offset, _ in story.readers[slow].got] == list(range(216))


def test_one_that_takes_nothing_for_two_minutes_is_dropped_with_words() -> None:
    story = Story(replace(LIMITS, stall_ms_max=120_000))
    slow, other = story.join(tile(2)[1]), story.join(tile(2)[0])
    story.append(2**31, 2**31 + 1)
    story.run(other)
    story.now_ms += 119_999
    assert story.tick() == []
    story.now_ms += 1

    assert story.tick() == [slow]
    gone = story.want(slow)
    assert isinstance(gone, FollowerGone)
    assert gone.kind is Retriable
    assert str(gone.error()).startswith(
        "a live reader of journal 'j' was dropped\n"
        "  keys 80000000-ffffffff: it took none of its 2 rows for 120 s\n"
        "  limit: 120 s (live_stall_ms_max)\n"
    )
    assert list(story.ring.subscribers) == [other]
    story.leave(slow)
    story.leave(other)
    assert story.ring.is_empty()


def test_who_waits_for_rows_is_never_dropped_and_who_takes_some_begins_anew() -> None:
    story = Story()
    waiting, busy = story.join(tile(2)[0]), story.join(tile(2)[1])
    story.append(*[2**31] * 4)
    story.run(waiting)
    story.append(*[2**31] * 4)
    story.run(waiting)
    for _ in range(2):
        story.now_ms += LIMITS.stall_ms_max - 1
        story.want(busy)
        assert story.tick() == []
    story.now_ms += 10 * LIMITS.stall_ms_max

    assert story.tick() == []
    assert len(story.readers[busy].got) == 8


def test_a_read_that_fails_is_heard_of_by_all_it_was_for_after_what_waits() -> None:
    story = Story()
    first, second = story.join(WHOLE), story.join(WHOLE)
    elsewhere = story.join(WHOLE, 4)
    story.append(*range(8))
    read = story.want(first)
    assert isinstance(read, ReadRows)
    story.finish(read.number)
    story.want(first)
    story.leave(elsewhere)
    elsewhere = story.join(WHOLE, 5)
    failing = story.want(first)
    assert isinstance(failing, ReadRows)
    del story.reading[failing.number]
    story.ring.on_failed(failing.number, OffsetOutOfRange, "offset 4 was truncated")

    gone = FollowerGone(OffsetOutOfRange, "offset 4 was truncated")
    assert story.want(first) == gone
    assert [story.want(second), story.want(second)] == [TakeRows(), gone]
    assert isinstance(story.run(elsewhere), AtEnd)


def test_a_read_that_was_given_up_is_done_by_the_next() -> None:
    story = Story()
    first, second = story.join(WHOLE), story.join(WHOLE)
    story.append(1)
    read = story.want(first)
    assert isinstance(read, ReadRows)
    story.cancel(read.number)
    story.leave(first)

    assert story.run(second) == AtEnd(Offset(1))
    assert story.readers[second].got == [(0, 1)]


def test_who_left_while_it_was_read_for_gets_nothing() -> None:
    story = Story()
    first, second = story.join(WHOLE), story.join(WHOLE)
    story.append(1)
    read = story.want(first)
    assert isinstance(read, ReadRows)
    story.leave(first)
    story.finish(read.number)

    assert story.run(second) == AtEnd(Offset(1))
    assert list(story.ring.subscribers) == [second]


def test_news_that_somebody_has_read_already_costs_no_read() -> None:
    story = Story()
    readers = [story.join(range_) for range_ in tile(3)]
    for who in readers:
        story.run(who)
    story.append(5)
    story.ring.on_more(Offset(0))
    story.run(readers[0])
    before = story.ring.reads
    for who in readers[1:]:
        story.ring.on_more(Offset(0))
        story.run(who)

    assert story.ring.reads == before


def test_a_replay_ends_by_itself_where_it_was_told() -> None:
    story = Story()
    story.append(*range(6), gap=3)
    one, beyond = story.join(WHOLE, 2, 5), story.join(WHOLE, 2, 12)

    assert story.run(one) == ReplayDone()
    assert [offset for offset, _ in story.readers[one].got] == [2, 3, 4]
    assert story.run(beyond) == AtEnd(Offset(9))
    story.append(*range(9))
    assert story.run(beyond) == ReplayDone()
    assert [offset for offset, _ in story.readers[beyond].got] == [2, 3, 4, 5, 9, 10, 11]


def test_an_empty_replay_is_done_before_anything_is_read() -> None:
    ring = Ring(KEY, LIMITS)
    story = Story()
    story.ring = ring
    who = story.join(WHOLE, 5, 5)

    assert story.want(who) == ReplayDone()
    assert ring.reads == 0
