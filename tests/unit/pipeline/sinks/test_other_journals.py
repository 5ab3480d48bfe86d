"""Rows that go to a journal of another workspace: two brokers without a common transaction."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.journal.kills_kit import KILLED, in_child, start
from tests.unit.pipeline.sinks.other_journals_kit import (
    APPENDING,
    BATCH_ROWS,
    CONFIG,
    EXPECTED,
    PROGRESS,
    ROWS,
    TARGET,
    bench,
    in_memory,
    judge,
    prepare,
    run_job,
)
from tests.unit.pipeline.worker.worker_kit import NUMBERS, column, dead, happened

from millrace.errors import AgentUnreachable, LeaseLost
from millrace.journal.core.values import Publish, Published
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.sinks.other_journals import OtherJournals, OtherJournalWriter

POINTS = [
    *APPENDING,
    "worker.publish.before",
    "worker.publish.after",
    "journal.ledger.before_commit",
    "journal.ledger.after_commit",
]


def judge_at_rest(folder: Path) -> None:
    home = EmbeddedBroker.open(str(folder / "mill"))
    other = EmbeddedBroker.open(str(folder / "other"))
    judge(home, other)
    home.close()
    other.close()


@pytest.mark.parametrize(
    "point", [*POINTS[:2], *(pytest.param(point, marks=pytest.mark.slow) for point in POINTS[2:])]
)
@pytest.mark.parametrize("is_later", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_worker_killed_between_two_brokers_leaves_each_row_once(
    tmp_path: Path, point: str, *, is_later: bool
) -> None:
    prepare(str(tmp_path))
    when = (None, point) if is_later else (point, None)
    assert in_child(run_job, str(tmp_path), *when) == KILLED

    assert in_child(run_job, str(tmp_path), None, None) == 0
    judge_at_rest(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_workers_killed_at_any_moment_leave_each_row_once(tmp_path: Path, seed: int) -> None:
    prepare(str(tmp_path))
    chance = random.Random(seed)  # noqa: S311 - replayable
    for _ in range(6):
        child = start(run_job, str(tmp_path), None, None)
        time.sleep(chance.uniform(0.02, 0.4))
        child.kill()
        child.join(60)

    assert in_child(run_job, str(tmp_path), None, None) == 0
    judge_at_rest(tmp_path)


class Losing(MemoryBroker):
    """A broker whose answers are lost, before or after it did what it was asked."""

    lost = 0

    def publish(self, request: Publish) -> Published:
        self.lost += 1
        if self.lost % 3 == 1:
            raise AgentUnreachable("lost on the way there")
        done = super().publish(request)
        if self.lost % 3 == 2:
            raise AgentUnreachable("lost on the way back")
        return done


def test_lost_answers_of_the_other_broker_append_no_row_twice(tmp_path: Path) -> None:
    home, _ = in_memory()
    other = Losing()
    other.create(TARGET, NUMBERS)

    bench(tmp_path, home, other).run()

    judge(home, other)
    assert other.lost > len(EXPECTED) // BATCH_ROWS, "some were lost"


def test_a_worker_that_was_taken_for_dead_does_not_append_rows_once_more(tmp_path: Path) -> None:
    home, other = in_memory()
    late = OtherJournalWriter(TARGET, OtherJournals(other, PROGRESS), CONFIG)
    (source,) = home.list("jobs/j/src")
    assert late.recover(source.name, source.id) is None

    bench(tmp_path, home, other).run()
    with pytest.raises(LeaseLost, match="were appended by another worker"):
        late.prepare(source.id, home.read(source.name, 0).rows().to_batches(), 0, 4)

    judge(home, other)


def test_a_worker_is_overtaken_by_a_late_append_and_goes_on_behind_it(tmp_path: Path) -> None:
    """The append of a worker that lost its lease arrives while its successor is at work."""
    home, other = in_memory()
    (source,) = home.list("jobs/j/src")
    late = OtherJournalWriter(TARGET, OtherJournals(other, PROGRESS), CONFIG)
    late.recover(source.name, source.id)
    plain = other.publish

    def publish(request: Publish) -> Published:
        other.publish = plain  # type: ignore[method-assign]
        late.prepare(source.id, [_rows(0, -1, -2)], 0, 4)
        return plain(request)

    other.publish = publish  # type: ignore[method-assign]
    bench(tmp_path, home, other).run()

    judge(home, other)


def test_rows_that_a_dead_worker_appended_are_not_appended_again_and_their_letters_come(
    tmp_path: Path,
) -> None:
    home, other = in_memory()
    (source,) = home.list("jobs/j/src")
    dying = OtherJournalWriter(TARGET, OtherJournals(other, PROGRESS), CONFIG)
    dying.recover(source.name, source.id)
    dying.prepare(source.id, [_rows(0, -1, -2)], 0, 4)
    dying.prepare(source.id, [_rows(-4, -5, -6)], 4, 7)

    started = bench(tmp_path, home, other).start()
    assert dying.recover(source.name, source.id) == 7
    started.run()

    judge(home, other)
    assert [letter["row"]["x"] for letter in dead(home, "f")[:1]] == [3]


def test_input_that_lost_rows_which_are_appended_already_is_named(tmp_path: Path) -> None:
    """As after commits of the job's own workspace were lost, and the user went on without them."""
    home, other = in_memory()
    (source,) = home.list("jobs/j/src")
    before = OtherJournalWriter(TARGET, OtherJournals(other, PROGRESS), CONFIG)
    before.recover(source.name, source.id)
    before.prepare(source.id, [_rows(0)], 0, 2 * ROWS)

    bench(tmp_path, home, other).run()

    (failed,) = [event for event in happened(home) if event.happened is JobEventKind.FAILED]
    assert "has lost rows that sink 'out' appended already" in failed.detail["error"]
    assert column(other, TARGET) == [0], "nothing is appended or left out"


def test_the_progress_of_a_sink_stays_small(tmp_path: Path) -> None:
    home, other = in_memory()
    bench(tmp_path, home, other).run()
    (source,) = home.list("jobs/j/src")
    writer = OtherJournalWriter(TARGET, OtherJournals(other, PROGRESS), CONFIG)

    writer.recover(source.name, source.id)

    progress = f"{PROGRESS}/{source.id}"
    assert len(column(other, progress, "next")) == 1


def _rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})
