"""Where checkpoints are kept: what was stored is what is found, numbers are never given twice."""

from __future__ import annotations

import random

import pytest

from millrace.errors import LeaseLost, UserError
from millrace.journal.memory import MemoryBroker
from millrace.reads.model.checkpoint import (
    Checkpoint,
    CheckpointNumber,
    ReadOffsets,
    ShownClock,
    merge,
    without_silent,
)
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.model.number_tables import NONE
from millrace.reads.session import checkpoint_store as stores
from millrace.reads.session.checkpoint_store import CheckpointStore, read_checkpoints
from millrace.reads.session.checkpoint_times import CheckpointTimes


def a_store(broker: MemoryBroker, **how: object) -> CheckpointStore:
    lease = broker.acquire("reads/tested", f"holder {broker.fence('reads/tested')}")
    return CheckpointStore(broker, "tested", lease, **how)  # type: ignore[arg-type]


def delta(number: int, tag: int, clock: int, offset: int) -> Checkpoint:
    return Checkpoint(
        number=CheckpointNumber(number),
        reads=ReadOffsets.of([(tag, offset, number)]),
        shown=ShownClock.of([(tag, 7, clock, NONE, number)]),
    )


def content(checkpoint: Checkpoint) -> tuple[object, ...]:
    return checkpoint.number, checkpoint.reads.rows(), checkpoint.shown.rows()


@pytest.mark.parametrize("seed", range(20))
def test_what_was_stored_is_found_however_often_it_is_opened_and_made_smaller(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    monkeypatch.setattr(stores, "_PART_BYTES", chance.choice([100, 1000, 10**6]))
    broker = MemoryBroker()
    whole, handed, highest = Checkpoint(), list[Checkpoint](), 0
    store = a_store(broker)
    store.load()
    for step in range(1, 60):
        match chance.choice(["prepare", "prepare", "commit", "both", "open", "drop"]):
            case "prepare":
                highest += 1
                handed.append(delta(highest, chance.randint(1, 5), step, step))
                store.prepare(handed[-1])
            case "commit" if handed:
                number = chance.choice(handed).number
                whole = merge(whole, *(each for each in handed if each.number <= number))
                handed = [each for each in handed if each.number > number]
                assert content(store.commit(number, {})) == content(whole)
            case "both" if handed:
                highest += 1
                number, added = chance.choice(handed).number, delta(highest, 1, step, step)
                whole = merge(whole, *(each for each in handed if each.number <= number))
                handed = [each for each in handed if each.number > number] + [added]
                assert content(store.commit(number, {}, prepare=added)) == content(whole)
            case "open":
                store = a_store(broker)
                store.load()
            case "drop" if handed:
                keep = chance.choice(handed).number
                store = a_store(broker)
                found = store.load(last_commit=whole.number, read_through=keep)
                handed = [each for each in handed if each.number <= keep]
                assert [each.number for each in found.prepared] == [e.number for e in handed]
        found = read_checkpoints(broker, "tested")
        assert content(found.committed) == content(whole)
        assert [content(each) for each in found.prepared] == [content(each) for each in handed]
        assert found.last_number == highest, "a number could be given out twice"


def test_a_session_whose_lease_is_over_stores_nothing() -> None:
    broker = MemoryBroker()
    old = a_store(broker)
    a_store(broker)
    with pytest.raises(LeaseLost):
        old.prepare(delta(1, 1, 1, 1))
    assert read_checkpoints(broker, "tested").prepared == ()


def test_a_checkpoint_that_was_not_handed_out_cannot_be_committed() -> None:
    store = a_store(MemoryBroker())
    with pytest.raises(
        UserError, match="checkpoint 3 of coordinated read tested was not handed out"
    ):
        store.commit(CheckpointNumber(3), {})


def test_bindings_may_be_added_and_not_moved() -> None:
    broker = MemoryBroker()
    one, two = Binding(name="one", prefix="a"), Binding(name="two", prefix="b")
    first = a_store(broker)
    first.load()
    first.keep_definition(CoordinatedRead("tested", [one]))
    second = a_store(broker)
    second.load()
    second.keep_definition(CoordinatedRead("tested", [one, two]))
    third = a_store(broker)
    third.load()
    with pytest.raises(UserError, match=r"before: one, two\n  now: two, one"):
        third.keep_definition(CoordinatedRead("tested", [two, one]))


def test_a_producer_that_was_silent_for_long_is_left_out() -> None:
    broker = MemoryBroker()
    now = 0
    store = a_store(broker, silent_ms=1000, now_ms=lambda: now)
    store.load()
    shown = ShownClock.of([(1, 7, 10, NONE, 1), (2, 7, 10, NONE, 1), (2, 8, 10, 5, 1)])
    store.prepare(Checkpoint(number=CheckpointNumber(1), shown=shown))
    assert len(store.commit(CheckpointNumber(1), {}).shown) == 3
    now = 5000
    store.prepare(delta(2, 3, 20, 1))
    whole = store.commit(CheckpointNumber(2), {})
    left = {(tag, producer) for tag, producer, *_ in whole.shown.rows()}
    assert left == {(2, 7), (2, 8), (3, 7)}, "of a tag with something open nobody is left out"


def test_nothing_that_changed_since_is_left_out() -> None:
    whole = Checkpoint(shown=ShownClock.of([(1, 7, 10, NONE, 4), (1, 8, 10, NONE, 5)]))
    assert without_silent(whole, 4).shown.rows() == [(1, 8, 10, NONE, 5)]
    assert without_silent(whole, 0).shown.rows() == whole.shown.rows()


def test_history_knows_roughly_what_was_last_by_a_moment() -> None:
    history = CheckpointTimes()
    for number in range(1, 1001):
        history.note(CheckpointNumber(number), number * 10)
    again = CheckpointTimes.from_bytes(history.to_bytes())
    assert again.last == 1000
    assert again.number_at(5) == 0
    for moment in range(10, 10_000, 370):
        assert again.number_at(moment) <= moment // 10
    assert again.number_at(10**6) == 1000
