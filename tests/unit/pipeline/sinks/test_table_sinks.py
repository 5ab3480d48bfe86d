"""Sinks whose files are committed to a table: what its readers see, and who commits what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.pipeline.sinks.sinks_kit import (
    JOB,
    SINK,
    Place,
    committed,
    make_input,
    publish,
)
from tests.unit.pipeline.sinks.table_sinks_kit import (
    commits,
    commits_in,
    committer,
    shown_rows,
    table_hop,
)

from millrace.config import Config
from millrace.errors import Conflict, LeaseLost, UserError
from millrace.journal.broker import Broker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.hops import Hop, files_journal
from millrace.pipeline.sinks import SinkWriter, check_sink, open_sink
from millrace.pipeline.sinks.table_committer import TableCommitter
from millrace.pipeline.sinks.table_record import commits_journal


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = MemoryBroker()
    make_input(made, 2, 100)
    yield made
    made.close()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def writer_of(broker: Broker, table: Path) -> tuple[Hop, SinkWriter]:
    hop = table_hop(table)
    check_sink(hop, broker)
    return hop, open_sink(hop, broker, Place("/nowhere"))


def test_rows_are_seen_once_the_driver_has_committed_their_files(
    broker: Broker, table: Path
) -> None:
    hop, writer = writer_of(broker, table)
    driver = committer(hop, broker)

    publish(broker, hop, writer, "in/0", (7, None))
    publish(broker, hop, writer, "in/1", (5, [100, 101]))
    assert shown_rows(table) == []
    assert driver.commit_due(now=True)

    assert shown_rows(table) == [*range(7), 100, 101]
    assert not driver.commit_due(now=True), "nothing is left"
    (only,) = commits(broker)
    assert (only.run, only.version, only.files, only.rows, only.tries) == (1, 0, 2, 9, 1)


def test_commits_wait_for_time_or_bytes(broker: Broker, table: Path) -> None:
    hop, writer = writer_of(broker, table)
    patient = committer(hop, broker, config=Config(job_commit_wait="1h"))
    publish(broker, hop, writer, "in/0", (7, None))
    assert not patient.commit_due(now=False)

    greedy = committer(hop, broker, config=Config(job_commit_wait="1h", job_commit_bytes=10))
    assert greedy.commit_due(now=False)
    assert shown_rows(table) == list(range(7))


def test_a_driver_that_died_before_it_marked_a_commit_is_followed_by_one_that_finds_it(
    broker: Broker, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop, writer = writer_of(broker, table)
    publish(broker, hop, writer, "in/0", (7, None))
    first = committer(hop, broker)
    with monkeypatch.context() as dies:
        dies.setattr(TableCommitter, "_mark", lambda *_: None)
        first.commit_due(now=True)
    assert commits(broker) == []

    second = committer(hop, broker, run=2)
    publish(broker, hop, writer, "in/0", (9, None))
    second.commit_due(now=True)

    assert shown_rows(table) == list(range(9))
    assert [(c.run, c.version, c.rows) for c in commits(broker)] == [(2, None, 7), (2, 1, 2)]


def test_of_two_drivers_that_commit_one_looks_again(broker: Broker, table: Path) -> None:
    hop, writer = writer_of(broker, table)
    old, new = committer(hop, broker), committer(hop, broker, run=2)
    publish(broker, hop, writer, "in/0", (7, None))
    assert old._read_on().files
    assert new.commit_due(now=True)
    publish(broker, hop, writer, "in/0", (9, None))

    assert old.commit_due(now=True), "it was refused, and looked again"
    assert shown_rows(table) == list(range(7))
    old.commit_due(now=True)
    new.commit_due(now=True)

    assert shown_rows(table) == list(range(9))
    assert sum(c.rows for c in commits(broker)) == 9


def test_commits_of_others_in_between_are_no_obstacle(broker: Broker, table: Path) -> None:
    hop, writer = writer_of(broker, table)
    driver = committer(hop, broker)
    publish(broker, hop, writer, "in/0", (7, None))
    others = iter([1, 1])

    def other_commits() -> None:
        if next(others, None) is not None:
            number = len(commits_in(str(table)))
            (table / f"{number}.commit").write_text('{"files": [], "places": {"other": 1}}')

    driver._table.before_put = other_commits  # type: ignore[attr-defined]
    driver.commit_due(now=True)

    assert shown_rows(table) == list(range(7))
    assert commits(broker)[0].tries == 3


def test_a_sink_that_was_set_back_commits_all_rows_again_and_its_old_driver_none(
    broker: Broker, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop, writer = writer_of(broker, table)
    old = committer(hop, broker)
    publish(broker, hop, writer, "in/0", (7, None))
    old.commit_due(now=True)
    publish(broker, hop, writer, "in/0", (9, None))
    assert old._read_on().files
    for journal in (files_journal(JOB, SINK), commits_journal(JOB, SINK)):
        broker.delete(journal)
    broker.commit(hop.group, "in/0", 0, expected=9)

    hop, writer = writer_of(broker, table)
    new = committer(hop, broker, run=2)
    publish(broker, hop, writer, "in/0", (3, None))
    new.commit_due(now=True)

    with pytest.raises(Conflict, match="was set back during the run"):
        old.commit_due(now=True)
    assert shown_rows(table) == sorted([*range(7), *range(3)])
    # And if it stood still behind that check: the table refuses it.
    monkeypatch.setattr(old, "_check_record", lambda: None)
    assert old._waiting is not None
    with pytest.raises(Conflict, match="was set back, and goes on elsewhere"):
        old._commit(old._waiting)
    assert shown_rows(table) == sorted([*range(7), *range(3)])


def test_a_table_that_is_ahead_of_its_record_is_refused(broker: Broker, table: Path) -> None:
    hop, _ = writer_of(broker, table)
    driver = committer(hop, broker)
    driver._table.commit([], before=None, place=driver._generation + 5)

    with pytest.raises(UserError, match="restored from an older copy"):
        committer(hop, broker)


def test_another_workspace_has_a_place_of_its_own(broker: Broker, table: Path) -> None:
    hop, writer = writer_of(broker, table)
    publish(broker, hop, writer, "in/0", (7, None))
    committer(hop, broker).commit_due(now=True)
    publish(broker, hop, writer, "in/0", (9, None))

    copied = committer(hop, broker, workspace="copy")
    copied.commit_due(now=True)

    assert shown_rows(table) == list(range(9)), "it goes on where the record is marked"


def test_a_driver_that_lost_its_lease_commits_nothing(broker: Broker, table: Path) -> None:
    hop, writer = writer_of(broker, table)

    def lost() -> None:
        raise LeaseLost("the run is over\n  to fix: nothing")

    driver = TableCommitter(hop, broker, Config(), workspace_id="w0", run=1, check=lost)
    publish(broker, hop, writer, "in/0", (7, None))
    with pytest.raises(LeaseLost):
        driver.commit_due(now=True)
    assert shown_rows(table) == []


def test_files_that_no_transaction_recorded_are_removed(broker: Broker, table: Path) -> None:
    _, writer = writer_of(broker, table)
    batch = pa.record_batch({"x": pa.array([1, 2], pa.int64())})

    prepared = writer.prepare(1, [batch], 0, 2)
    assert len(list(table.glob("*.parquet"))) == 1
    prepared.abandon()

    assert os.listdir(table) == []


def test_rows_that_the_table_cannot_take_are_refused_first(broker: Broker, table: Path) -> None:
    hop = table_hop(table, pa.schema([("y", pa.int64())]))
    with pytest.raises(UserError, match="sink 'out' of job 'captions' does not fit"):
        check_sink(hop, broker)
    assert not table.exists()
    assert committed(broker, hop, []) == []
