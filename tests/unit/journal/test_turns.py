"""Concurrent requests share one commit, and each is refused for its own reasons only."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import FILES, SCHEMA, column, publish, read_all, values

from millrace.config import Config
from millrace.errors import Conflict, StorageError
from millrace.journal.core.book import Book
from millrace.journal.core.values import Appended
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.embedded.ledger.ledger_port import Storing
from millrace.journal.embedded.ledger.sqlite_ledger import SqliteLedger
from millrace.journal.group_commit import GroupCommit
from millrace.journal.memory import MemoryBroker
from millrace.testing.bad_disks import RefusingDisk

J = "acme/orders"


class Counting(SqliteLedger):
    commits = 0

    def save(self, draft: Book, storing: Storing) -> None:
        super().save(draft, storing)
        self.commits += 1


def waiting_together(
    broker: EmbeddedBroker, pool: ThreadPoolExecutor, expected: list[int | None]
) -> list[Future[Appended]]:
    """Appends that all wait while somebody else has the turn, then go on at once."""
    with broker._group_commit._turn:
        asked = []
        for number, end in enumerate(expected):
            asked.append(pool.submit(broker.append, J, column([number]), expected=end))
            while len(broker._group_commit._waiting) <= number:
                threading.Event().wait(0.001)
    return asked


def test_appends_that_wait_together_share_one_commit(tmp_path: Path) -> None:
    broker = EmbeddedBroker.open(str(tmp_path), ledger=Counting)
    broker.create(J, SCHEMA)
    ledger = broker._ledger
    assert isinstance(ledger, Counting)
    before = ledger.commits
    with ThreadPoolExecutor(6) as pool:
        asked = waiting_together(broker, pool, [None, 1, 99, None, 99, None])
        told = [each.exception() or each.result().first_offset for each in asked]

    assert ledger.commits == before + 1
    assert [type(each) for each in told] == [int, int, Conflict, int, Conflict, int]
    assert read_all(broker, J) == [0, 1, 3, 5]
    broker.close()


def test_a_commit_has_a_size(tmp_path: Path) -> None:
    config = Config(journal_commit_bytes_max=1)
    broker = EmbeddedBroker.open(str(tmp_path), config, ledger=Counting)
    broker.create(J, SCHEMA)
    ledger = broker._ledger
    assert isinstance(ledger, Counting)
    before = ledger.commits
    with ThreadPoolExecutor(3) as pool:
        for each in waiting_together(broker, pool, [None, None, None]):
            each.result()

    assert ledger.commits == before + 3
    broker.close()


def test_what_cannot_be_saved_is_refused_for_all_and_leaves_no_trace(tmp_path: Path) -> None:
    disk = RefusingDisk("write", 1, errno.ENOSPC)
    broker = EmbeddedBroker.open(str(tmp_path), FILES, disk=disk)
    broker.create(J, SCHEMA)
    with ThreadPoolExecutor(3) as pool:
        told = [each.exception() for each in waiting_together(broker, pool, [None, 1, 9])]

    assert [type(each) for each in told] == [StorageError, StorageError, Conflict]
    assert told[0] is not told[1]
    assert broker.append(J, column([7])).first_offset == 0
    assert read_all(broker, J) == [7]
    broker.close()


def test_an_interrupt_before_saving_stops_nobody() -> None:
    book = Book()
    turns = GroupCommit(book, lambda _: None, 100, lambda: None)

    def interrupted(_: Book) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns.run(interrupted)
    assert turns.run(lambda draft: draft.raise_count("n")) == 1
    assert book.count("n") == 1


def test_an_error_in_a_request_is_its_own() -> None:
    book = Book()
    turns = GroupCommit(book, lambda _: None, 100, lambda: None)

    def fail(draft: Book) -> None:
        draft.raise_count("n")
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        turns.run(fail)
    assert book.count("n") == 0


def test_readers_beside_moving_out_and_truncation_see_every_row_once(tmp_path: Path) -> None:
    config = Config().with_options(
        journal_small_bytes_max=1500,
        journal_segment_bytes_target=6000,
        journal_move_out_bytes_min=1,
        journal_read_rows_max=7,
    )
    broker = EmbeddedBroker.open(str(tmp_path), config)
    for name in (J, "other"):
        broker.create(name, SCHEMA)
    broker.commit("g", J, 0, expected=None)
    done = threading.Event()

    def write() -> None:
        for i in range(60):
            if i % 3:
                broker.append(J, column([i] * (1 + i % 90)))
            else:
                publish(broker, {J: column([i]), "other": column([i])})
            if i % 7 == 0:
                broker.tidy()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    at, seen = 0, []
    while not (done.is_set() and at == broker.end_offset(J)):
        fetched = broker.read(J, at)
        seen += values(fetched)
        if fetched.next_offset > at:
            broker.commit("g", J, fetched.next_offset, expected=at)
            broker.truncate_committed(J)
        at = fetched.next_offset
    writer.join()

    assert seen == [i for i in range(60) for _ in range((1 + i % 90) if i % 3 else 1)]
    assert broker.start_offset(J) == at
    broker.close()


def test_who_waits_for_one_journal_is_not_woken_for_another() -> None:
    broker = MemoryBroker()
    for name in ("a", "b"):
        broker.create(name, SCHEMA)
    looked: list[str] = []
    looking = threading.Semaphore(0)

    def waiting(name: str) -> bool:
        def until() -> bool:
            looked.append(name)
            looking.release()
            return broker.end_offset(name) > 1

        return broker._group_commit.wait(until, 60, (name,))

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(waiting, name) for name in ("a", "b")]
        for _ in both:
            assert looking.acquire(timeout=60)
        looked.clear()
        for _ in range(5):
            broker.append("a", column([1]))
        assert both[0].result(60)
        assert set(looked) == {"a"}
        broker.append("b", column([1, 2]))
        assert both[1].result(60)
    assert broker._group_commit._bells == {}


def test_whoever_waits_is_woken_when_the_broker_stops() -> None:
    broker = MemoryBroker()
    broker.create("a", SCHEMA)
    with ThreadPoolExecutor(2) as pool:
        rows = pool.submit(broker.wait_for_rows, {"a": 0}, timeout_s=600)
        journals = pool.submit(broker.watch, broker.watch(-1).version, timeout_s=600)
        while len(broker._group_commit._bells) < 2:
            threading.Event().wait(0.001)
        broker.close()
        assert rows.result(60) is False
        assert len(journals.result(60).journals) == 1
