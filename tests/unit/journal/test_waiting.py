"""Rows of very many journals that ride in the ledger: counted as they come, moved out in time."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.journal.journal_kit import SCHEMA, column, read_all

from millrace.config import Config
from millrace.journal.embedded.broker import EmbeddedBroker
from millrace.journal.embedded.waiting import Waiting
from millrace.journal.names import JournalId

LIMIT = 32 * 1024
SMALL = Config(journal_waiting_total_bytes_max=LIMIT, journal_move_out_max=3)
STEPS = st.lists(st.tuples(st.sampled_from("aaad"), st.integers(1, 6), st.integers(1, 50)))


@given(st.dictionaries(st.integers(1, 6), st.integers(1, 50)), STEPS, st.integers(1, 4))
def test_the_sum_and_the_largest_are_those_of_what_waits(
    begin: dict[int, int], steps: list[tuple[str, int, int]], count: int
) -> None:
    model = {JournalId(journal): size for journal, size in begin.items()}
    waiting = Waiting(model)
    for what, number, size in steps:
        journal = JournalId(number)
        if what == "a":
            waiting.add(journal, size)
            model[journal] = model.get(journal, 0) + size
        else:
            waiting.drop(journal)
            model.pop(journal, None)
        for least in (1, 40):
            found = waiting.largest(count, least)
            sizes = sorted((size for size in model.values() if size >= least), reverse=True)
            assert [model[each] for each in found] == sizes[:count]
            assert len(set(found)) == len(found)
        assert waiting.total == sum(model.values())
        assert waiting.of(journal) == model.get(journal, 0)


def test_a_heap_of_many_appends_to_few_journals_stays_small() -> None:
    waiting = Waiting({})
    for _ in range(10_000):
        waiting.add(JournalId(1), 1)

    assert len(waiting._heap) < 2000
    assert waiting.largest(5) == [1]


def ridden(folder: Path) -> tuple[int, int]:
    """How many bytes and journals ride in a ledger, by SQLite itself."""
    db = sqlite3.connect(folder / "ledger.sqlite")
    size, journals = db.execute("SELECT sum(bytes), count(DISTINCT journal) FROM bodies").fetchone()
    db.close()
    return size or 0, journals


def test_many_small_journals_stay_within_what_may_wait_for_all_of_them(tmp_path: Path) -> None:
    broker = EmbeddedBroker.open(str(tmp_path), SMALL)
    names = [f"j/{number}" for number in range(60)]
    broker.create_many(names, SCHEMA)
    most = 0
    for value in range(5):
        for name in names:
            broker.append(name, column([value]))
            most = max(most, broker._stores.waiting.total)
            assert broker._stores.waiting.total <= LIMIT
    size, journals = ridden(tmp_path)

    assert most > LIMIT / 2
    assert broker._stores.waiting.total == size
    assert 0 < journals <= 60
    assert [read_all(broker, name) for name in names] == [list(range(5))] * 60
    broker.close()
    again = EmbeddedBroker.open(str(tmp_path), SMALL)
    assert again._stores.waiting.total == size
    assert [read_all(again, name) for name in names] == [list(range(5))] * 60
    again.close()


def test_what_is_deleted_waits_no_more_and_a_large_commit_is_made_good_at_once(
    tmp_path: Path,
) -> None:
    broker = EmbeddedBroker.open(str(tmp_path), SMALL)
    names = [f"j/{number}" for number in range(40)]
    broker.create_many(names, SCHEMA)
    with broker.transaction() as t:
        for name in names:
            t.append(name, column(range(100)))
    assert broker._stores.waiting.total <= LIMIT
    for name in names[:-1]:
        broker.delete(name)
    broker.append(names[-1], column([7]))

    assert broker._stores.waiting.total == ridden(tmp_path)[0]
    assert read_all(broker, names[-1]) == [*range(100), 7]
    broker.close()
