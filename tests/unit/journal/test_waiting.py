"""Rows of very many journals that ride in the ledger: counted as they come, moved out in time."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.journal.journal_kit import SCHEMA, column, read_all
from tests.unit.journal.kills_kit import GATHERED, KILLED, child_gathers, in_child
from tests.unit.journal.test_kills import unnamed_files

from millrace.config import Config
from millrace.errors import Corrupt
from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger_bytes import LedgerBytes

LIMIT = GATHERED.journal_waiting_total_bytes_max
SMALL = GATHERED
GATHERING = ("before_mark", "after_mark", "after_write", "after_sync", "after_folder_sync")
STEPS = st.lists(st.tuples(st.sampled_from("aaad"), st.integers(1, 6), st.integers(1, 50)))


@example({}, [("a", 1, 5), ("d", 1, 1), ("a", 1, 5), ("a", 2, 4)], 3)
@given(st.dictionaries(st.integers(1, 6), st.integers(1, 50)), STEPS, st.integers(1, 4))
def test_the_sum_and_the_largest_are_those_of_what_waits(
    begin: dict[int, int], steps: list[tuple[str, int, int]], count: int
) -> None:
    model = {JournalId(journal): size for journal, size in begin.items()}
    waiting = LedgerBytes(model)
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
    waiting = LedgerBytes({})
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


def shared(folder: Path) -> list[Path]:
    return sorted(folder.glob("segments/0/*"))


def filled(
    folder: Path, config: Config = SMALL, rounds: int = 3
) -> tuple[EmbeddedBroker, list[str]]:
    """Journals of which some rows ride in the ledger and others lie in shared segments."""
    broker = EmbeddedBroker.open(str(folder), config)
    names = [f"j/{number}" for number in range(60)]
    broker.create_many(names, SCHEMA)
    for value in range(rounds):
        for name in names:
            broker.append(name, column([value]))
    assert shared(folder)
    return broker, names


def test_small_journals_share_a_file_and_large_ones_have_their_own(tmp_path: Path) -> None:
    config = SMALL.with_options(journal_move_out_bytes_min=4096)
    broker, names = filled(tmp_path, config)
    broker.create("large", SCHEMA)
    for value in range(20):
        broker.append("large", column([value] * 200))
    folders = {path.name for path in tmp_path.glob("segments/*/")}

    assert folders == {"0", str(broker.get("large").id)}
    found = broker.read_many(ReadRequest(offsets=dict.fromkeys(names, 1), isolation="raw"))
    assert [each.rows()["x"].to_pylist() for each in found.values()] == [[1, 2]] * 60
    assert read_all(broker, "large") == [value for value in range(20) for _ in range(200)]
    broker.close()


def test_a_shared_file_goes_when_no_row_of_it_is_left(tmp_path: Path) -> None:
    config = SMALL.with_options(journal_segment_bytes_target=8192)
    broker, names = filled(tmp_path, config, rounds=4)
    before = shared(tmp_path)
    assert len(before) > 2
    for name in names[1:]:
        broker.delete(name)
    broker.tidy()
    pinned = shared(tmp_path)
    assert 0 < len(pinned) < len(before)
    assert read_all(broker, names[0]) == [0, 1, 2, 3]
    broker.truncate_before(names[0], 4)
    broker.tidy()
    assert len(shared(tmp_path)) <= 1  # The one that may still grow.
    broker.append(names[0], column([4]))
    broker.close()

    again = EmbeddedBroker.open(str(tmp_path), config)
    assert read_all(again, names[0]) == [4]
    again.close()


def test_a_bad_byte_in_a_shared_file_is_told_to_who_reads_that_journal_alone(
    tmp_path: Path,
) -> None:
    broker, names = filled(tmp_path)
    file = shared(tmp_path)[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    errors: dict[str, str] = {}
    for name in names:
        try:
            assert read_all(broker, name) == [0, 1, 2]
        except Corrupt as error:
            errors[name] = str(error)

    ((bad, text),) = errors.items()
    assert str(file) in text
    assert repr(bad) in text
    with pytest.raises(Corrupt, match=repr(bad)):
        broker.read_many(
            ReadRequest(offsets=dict.fromkeys(names, 0), isolation="raw", missing="tell")
        )
    broker.close()


@pytest.mark.parametrize("point", [f"journal.append.{step}" for step in GATHERING])
def test_a_broker_killed_while_it_gathers_loses_nothing(tmp_path: Path, point: str) -> None:
    told = tmp_path / "told"
    assert in_child(child_gathers, str(tmp_path / "mill"), str(told), point) == KILLED
    done = [line.split() for line in told.read_text().splitlines()]

    broker = EmbeddedBroker.open(str(tmp_path / "mill"), SMALL)
    for name, value in done:
        assert int(value) in read_all(broker, name)
    for each in broker.list():
        rows = read_all(broker, each.name)
        assert rows == list(range(len(rows)))
        broker.append(each.name, column([len(rows)]))
    broker.tidy()
    assert unnamed_files(tmp_path / "mill") == set()
    broker.close()


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
