"""The log of moves: bounded, and never silently incomplete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.journal.journal_kit import SCHEMA, column

from millrace.config import Config
from millrace.journal.core.journal_names import JournalId
from millrace.journal.memory import MemoryBroker
from millrace.journal.moved_journals import MovedLately


def ids(*numbers: int) -> list[JournalId]:
    return [JournalId(number) for number in numbers]


def test_what_was_forgotten_is_told_as_all() -> None:
    moves = MovedLately(2, lambda: 1000)
    moves.note(ids(1))
    one = moves.after(1000)
    moves.note(ids(2, 3))

    assert one.journals == (1,)
    assert moves.after(1000).journals is None
    assert moves.after(one.version).journals == (2, 3)
    moves.note(ids(3, 3))
    assert moves.after(one.version).journals == (2, 3)


def test_a_new_life_knows_no_version() -> None:
    bases = iter([1000, 5000])
    moves = MovedLately(10, lambda: next(bases))
    moves.note(ids(1, 2))
    before = moves.after(1000).version
    moves.forget()

    assert moves.after(before).journals is None
    assert moves.after(5000).journals == ()


@given(
    st.integers(1, 6),
    st.lists(st.lists(st.integers(1, 8), max_size=4), max_size=12),
)
def test_every_move_after_a_version_is_told_or_all_are(
    limit: int, history: list[list[int]]
) -> None:
    moves = MovedLately(limit)
    seen = [(moves.after(0).version, 0)]
    for number, moved in enumerate(history):
        moves.note(ids(*moved))
        seen.append((moves.after(0).version, number + 1))

    for version, place in seen:
        told = moves.after(version).journals
        later = [each for moved in history[place:] for each in moved]
        expected = tuple(reversed(dict.fromkeys(reversed(later))))  # By their last move.
        assert told == (expected if len(expected) <= limit else None)


def test_a_broker_with_a_short_memory_says_look_at_all() -> None:
    broker = MemoryBroker(Config(journal_moves_max=2))
    made = broker.create_many(["a", "b", "c"], SCHEMA)
    since = broker.moved(0, timeout_s=0).version
    broker.append("a", column([1]))
    assert broker.moved(since, timeout_s=0).journals == (made[0].id,)
    broker.append("b", column([1]))
    broker.append("c", column([1]))

    assert broker.moved(since, timeout_s=0).journals is None
