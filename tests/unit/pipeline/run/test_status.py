"""How far a job is, and setting steps back: from the broker alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.pipeline.played_kit import JOB, ROWS, Played, table

from millrace.errors import LeaseHeld, LeaseLost, UserError
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.job_record import JobPart, JobRecord
from millrace.pipeline.paid.call_records import Totals
from millrace.pipeline.report.job_counts import Counting
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_status import job_status, list_jobs
from millrace.pipeline.run.reset import finish_reset, reset_step
from millrace.pipeline.run.retention import free_all, free_read_rows
from millrace.testing.fault_injection import armed


@pytest.fixture
def played() -> Played:
    return Played.started(MemoryBroker())


def step(played: Played, name: str) -> dict[str, object]:
    found = next(s for s in job_status(played.broker, JOB).steps if s.name == name)
    return {key: getattr(found, key) for key in ("rows_in", "rows_out", "backlog", "calls")}


def test_counts_come_from_offsets_journals_and_records_of_calls(played: Played) -> None:
    played.do("caption", "videos", 0, 5)
    played.do("caption", "videos", 1, 2)
    played.record_calls(0, Totals(calls=6, in_doubt=1, errors=2))
    played.record_calls(1, Totals(calls=2, skipped=1))
    played.dead_letter("caption")
    played.dead_letter("good")

    status = job_status(played.broker, JOB)

    caption, by_user, out = status.steps
    assert (caption.rows_in, caption.rows_out, caption.backlog) == (7, 7, 3)
    assert (caption.calls, caption.in_doubt, caption.errors, caption.skipped) == (8, 1, 2, 1)
    assert caption.dead_letters == 1
    assert (by_user.rows_in, by_user.backlog, by_user.calls) == (0, 7, None)
    assert by_user.dead_letters == 1, "of the step that is fused into it"
    assert (out.rows_in, out.rows_out) == (0, None)
    assert status.state == "killed"
    assert not status.caught_up
    assert "caption" in str(status)


def test_what_a_run_did_is_told_apart_from_what_was_done_before(played: Played) -> None:
    played.do("caption", "videos", 0, 5)
    played.record_calls(0, Totals(calls=5))
    played.start(2, before={"caption": {"rows_in": 5, "calls": 5}})
    played.do("caption", "videos", 1, 5)
    played.record_calls(1, Totals(calls=5))

    caption = job_status(played.broker, JOB).steps[0]

    assert (caption.calls, caption.calls_now, caption.reused) == (10, 5, 5)


def test_a_job_that_somebody_runs_names_who(played: Played) -> None:
    lease = played.broker.acquire(hops.run_lease(JOB), "ann on host7")
    played.start(lease.epoch)

    (status,) = list_jobs(played.broker)

    assert (status.state, status.holder) == ("running", "ann on host7")
    played.broker.release(lease)
    (status,) = list_jobs(played.broker)
    assert (status.state, status.holder) == ("killed", None)


def test_runs_tell_how_they_ended(played: Played) -> None:
    played.start(2)
    played.tell(JobEventKind.FAILED, 2, "caption", error="no")
    played.start(3)
    played.tell(JobEventKind.ENDED, 3, state="finished")

    runs = job_status(played.broker, JOB).runs

    assert [(run.number, run.state) for run in runs] == [
        (1, "killed"),
        (2, "failed"),
        (3, "finished"),
    ]


def test_a_run_that_does_not_wait_wants_no_rows_that_came_after_it_began() -> None:
    broker = MemoryBroker()
    part = JobPart(name="read", kind="map", inputs=("acme",), prefixes=("acme/",), depth=1)
    record = JobRecord(JOB, (JobPart(name="acme", kind="journals", journals=("acme/",)), part))
    for name in ("acme/a", "acme/b"):
        broker.create(name, ROWS)
    broker.append("acme/a", table(1, 2, 3))
    counting = Counting(broker, record, ends={"acme/a": 3, "acme/b": 0})

    def found() -> tuple[int, int]:
        counts = counting.count().parts["read"]
        return counts.backlog, counts.waiting

    assert found() == (3, 3)
    broker.append("acme/b", table(4))
    broker.create("acme/later", ROWS)
    broker.append("acme/later", table(5))
    assert found() == (5, 3)
    broker.append("acme/a", table(6))
    broker.commit(hops.step_root(JOB, "read"), "acme/a", 3, expected=None)
    assert found() == (3, 0)
    assert Counting(broker, record).count().parts["read"].waiting == 3, "one that waits wants all"


def test_an_unknown_job_is_refused_by_name(played: Played) -> None:
    with pytest.raises(UserError, match=f"no job 'other'.*\n  found: {JOB}"):
        job_status(played.broker, "other")


def test_counts_stay_right_after_rows_were_removed(played: Played) -> None:
    for partition in range(2):
        played.do("caption", "videos", partition, 5)
        played.do("by_user", "caption", partition, 5)
        played.do("out", "by_user", partition, 3, out=False)
    before = [step(played, name) for name in ("caption", "by_user", "out")]

    freed = free_read_rows(played.history, played.record, run=1, everything=False)

    assert (freed.rows, freed.journals) == (6, 2), "of the cheap step alone"
    assert [step(played, name) for name in ("caption", "by_user", "out")] == before
    played.do("out", "by_user", 0, 2, out=False)
    assert step(played, "out")["rows_in"] == 8
    assert free_all(played.broker, JOB).rows == 10 + 10 + 2
    assert step(played, "caption") == before[0]
    assert step(played, "out")["rows_in"] == 8
    assert free_all(played.broker, JOB).rows == 0


def test_rows_that_a_reader_has_yet_to_read_stay(played: Played) -> None:
    played.do("caption", "videos", 0, 5)
    played.do("by_user", "caption", 0, 5)

    assert free_read_rows(played.history, played.record, run=1, everything=False).rows == 0
    assert played.rows_of("by_user") == [0, 2, 4, 6, 8]


def test_rows_that_others_read_stay(played: Played) -> None:
    played.do("caption", "videos", 0, 5)
    played.do("by_user", "caption", 0, 5)
    played.do("out", "by_user", 0, 5, out=False)
    played.broker.commit("others", hops.output_journal(JOB, "by_user", 0), 0, expected=None)

    assert free_read_rows(played.history, played.record, run=1, everything=False).rows == 0


def test_a_reset_takes_away_a_step_and_all_that_depends_on_it(played: Played) -> None:
    for partition in range(2):
        played.do("caption", "videos", partition, 5)
        played.do("by_user", "caption", partition, 5)
    played.record_calls(0, Totals(calls=5))
    played.dead_letter("good")

    gone = reset_step(played.broker, JOB, "caption")

    assert gone == ("caption", "by_user", "out")
    assert played.rows_of("videos") == list(range(10))
    assert [info.name for info in played.broker.list(f"jobs/{JOB}/caption")] == []
    assert [info.name for info in played.broker.list(f"jobs/{JOB}/by_user")] == []
    for partition in range(2):
        journal = hops.output_journal(JOB, "videos", partition)
        assert played.broker.committed(hops.step_root(JOB, "caption"), journal) == 0
    assert step(played, "caption") == {"rows_in": 0, "rows_out": 0, "backlog": 10, "calls": 0}


def test_a_reset_of_what_is_fused_is_one_of_what_it_runs_in(played: Played) -> None:
    played.do("caption", "videos", 0, 5)

    assert reset_step(played.broker, JOB, "good") == ("by_user", "out")
    assert played.rows_of("caption") == [0, 2, 4, 6, 8]


def test_a_reset_of_a_source_lets_it_be_taken_in_again(played: Played) -> None:
    reset_step(played.broker, JOB, "videos")

    assert RunHistory.open(played.broker, JOB).taken_in("videos") == []
    assert played.broker.list(f"jobs/{JOB}/videos") == ()


def test_a_zombie_worker_publishes_nothing_after_a_reset(played: Played) -> None:
    journal = played.broker.get(hops.output_journal(JOB, "videos", 0))
    lease = played.broker.acquire(hops.unit_lease(JOB, "caption", journal.id), "worker")

    reset_step(played.broker, JOB, "caption")

    with pytest.raises(LeaseLost, match="epoch"), played.broker.transaction(lease) as t:
        t.commit("g", journal.name, 1, expected=None)


def test_a_reset_is_refused_while_the_job_runs(played: Played) -> None:
    played.broker.acquire(hops.run_lease(JOB), "ann on host7")

    with pytest.raises(LeaseHeld, match="run by: ann on host7"):
        reset_step(played.broker, JOB, "caption")


def test_a_reset_is_refused_where_the_input_is_gone_and_says_what_else_can_be(
    played: Played,
) -> None:
    for partition in range(2):
        played.do("caption", "videos", partition, 5)
        played.do("by_user", "caption", partition, 5)
    free_all(played.broker, JOB)
    before = len(played.history.events)

    with pytest.raises(UserError, match="input was truncated(.|\n)*reset 'caption' instead"):
        reset_step(played.broker, JOB, "by_user")
    with pytest.raises(UserError, match="reset 'videos' instead"):
        reset_step(played.broker, JOB, "caption")
    reset_step(played.broker, JOB, "videos")

    assert before < len(played.history.events) + len(played.history.look())


def test_a_reset_that_would_append_to_a_users_journal_again_has_to_be_wanted(
    played: Played,
) -> None:
    played.do("caption", "videos", 0, 5)
    played.do("by_user", "caption", 0, 5)
    played.do("out", "by_user", 0, 5, out=False)

    with pytest.raises(UserError, match="has appended rows to journal 'acme/captions'"):
        reset_step(played.broker, JOB, "caption")
    assert reset_step(played.broker, JOB, "caption", append_again=True) == (
        "caption",
        "by_user",
        "out",
    )


def test_a_step_that_is_not_there_is_refused_with_those_that_are(played: Played) -> None:
    with pytest.raises(UserError, match="found: caption, videos, by_user, out"):
        reset_step(played.broker, JOB, "captoin")


KILLED = """
import sys
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.run.reset import reset_step
reset_step(EmbeddedBroker.open(sys.argv[1]), "captions", "caption")
"""


@pytest.mark.parametrize(
    "point", ["job.reset.after_event", "job.reset.after_part", "job.reset.before_done"]
)
def test_a_reset_that_is_killed_is_finished_by_the_next_run(tmp_path: Path, point: str) -> None:
    broker = EmbeddedBroker.open(str(tmp_path))
    played = Played.started(broker)
    for partition in range(2):
        played.do("caption", "videos", partition, 5)
        played.do("by_user", "caption", partition, 5)
    broker.close()

    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env=armed(point, base=os.environ),
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    broker = EmbeddedBroker.open(str(tmp_path))
    history = RunHistory.open(broker, JOB)
    broker.fence(hops.run_lease(JOB))
    lease = broker.acquire(hops.run_lease(JOB), "next run")
    assert finish_reset(history, lease)
    assert not finish_reset(history, lease)
    status = job_status(broker, JOB)
    assert [(s.rows_in, s.backlog) for s in status.steps] == [(0, 10), (0, 0), (0, 0)]
    broker.close()
