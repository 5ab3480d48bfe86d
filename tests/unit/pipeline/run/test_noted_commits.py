"""What workers note of their commits: shown in the report, and removed when it is old."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.pipeline.sinks.sinks_kit import SCHEMA, SINK, hop_of

from millrace.journal.kafka.sink.kafka_target import KafkaTarget
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.job_events import SinkCommit
from millrace.pipeline.core.job_model import KafkaSink, Sink
from millrace.pipeline.report.job_report import commits_text
from millrace.pipeline.run import noted_commits
from millrace.pipeline.run.noted_commits import NotedCommits, remove_old_notes
from millrace.pipeline.sinks import appended_before, file_records, noted_journal
from millrace.pipeline.sinks.commit_notes import CommitNotes

ROWS = pa.record_batch([pa.array([1, 2, 3])], names=["n"])


@pytest.fixture
def broker() -> MemoryBroker:
    made = MemoryBroker()
    for name, schema in file_records(HOP).items():
        made.create(name, schema)
    return made


def topic_sink() -> Sink:
    target = KafkaTarget(topic="t", servers="kafka.example:9092")
    return KafkaSink(name=SINK, schema=SCHEMA, target=target)


HOP = hop_of(topic_sink())


def note(broker: MemoryBroker, run: int, version: int | None = 7) -> None:
    notes = CommitNotes.of(HOP, run)
    assert notes is not None
    prepared = notes.noted([ROWS, ROWS], version)
    with broker.transaction() as t:
        prepared.add_to(t)
    prepared.finish()


def test_a_report_has_the_commits_of_its_own_run(broker: MemoryBroker) -> None:
    note(broker, run=1)
    noted = NotedCommits([HOP], broker, run=2)
    note(broker, run=1)
    note(broker, run=2, version=8)
    note(broker, run=2, version=None)

    made = noted.made()

    assert [(each.version, each.rows, each.files) for each in made] == [(8, 6, 0), (None, 6, 0)]
    assert made[0].bytes == 2 * ROWS.nbytes
    assert commits_text(made[:1]) == [f"{SINK}: 1 commits, 6 rows, the last is transaction 8"]
    assert commits_text(made) == [f"{SINK}: 2 commits, 12 rows"]


def test_the_last_commits_are_shown_where_there_are_very_many(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted_commits, "COMMITS_SHOWN_MAX", 5)
    noted = NotedCommits([HOP], broker, run=1)
    for version in range(40):
        note(broker, run=1, version=version)
    assert [each.version for each in noted.made()] == list(range(35, 40))


def test_old_notes_go_and_new_ones_stay(
    broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted_commits, "NOTES_KEPT", 10)
    journal = noted_journal(HOP)
    assert journal is not None
    for version in range(9):
        note(broker, run=1, version=version)
    remove_old_notes([HOP], broker)
    assert broker.start_offset(journal) == 0
    for version in range(9, 40):
        note(broker, run=1, version=version)
    remove_old_notes([HOP], broker)
    start = broker.start_offset(journal)
    assert broker.end_offset(journal) - start == 10
    assert broker.read(journal, start).rows()["version"].to_pylist() == list(range(30, 40))


def test_rows_of_a_dead_worker_are_noted_without_a_version(broker: MemoryBroker) -> None:
    class Settings:
        run_epoch = 3

    noted = NotedCommits([HOP], broker, run=3)
    prepared = appended_before(HOP, Settings()).prepare(1, [ROWS], 0, 3)  # type: ignore[arg-type]
    with broker.transaction() as t:
        prepared.add_to(t)
    (commit,) = noted.made()
    assert (commit.version, commit.rows) == (None, 3)
    assert isinstance(commit, SinkCommit)
