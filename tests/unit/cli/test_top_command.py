"""`millrace top` shows jobs and steps, follows them in a terminal, and ends with Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.cli.main import cli
from millrace.cli.state.top_screen import TopView, rates
from millrace.pipeline.core import hops
from millrace.pipeline.paid.call_records import Totals
from millrace.system.job_reading import seen_job
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.workspace_now import RunMemory, job_now, workspace_now
from millrace.workspace import runtime_of

WAIT_S = 60


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with mr.open(tmp_path / "mill") as ws:
        job = Played.started(runtime_of(ws).joined_broker())
        job.do("caption", "videos", 0, 4)
        job.record_calls(0, Totals(calls=5, in_doubt=1, nano_usd=1_250_000_000))
        yield job


@pytest.mark.usefixtures("played")
def test_one_screen_is_written_into_a_pipe(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["top", str(tmp_path / "mill")], catch_exceptions=False)

    lines = done.output.splitlines()
    (caption,) = [line.split() for line in lines if line.startswith("caption ")]
    assert "Nothing runs now." in lines[0]
    assert "captions: killed" in done.output
    assert "6 rows wait; the run was killed" in " ".join(caption)
    assert caption[-1] == "$1.25"
    assert "to go on: run it again to go on where it stopped" in done.output


def test_a_job_that_runs_comes_first_and_another_can_be_chosen(
    tmp_path: Path, played: Played
) -> None:
    played.broker.acquire(hops.run_lease(JOB), "a test", lease_ms=600_000)

    runner = CliRunner()
    running = runner.invoke(cli, ["top", str(tmp_path / "mill"), "--once"], catch_exceptions=False)

    assert "Running now: job captions." in running.output
    with pytest.raises(mr.UserError, match="no job"):
        runner.invoke(cli, ["top", str(tmp_path / "mill"), "--job", "none"], catch_exceptions=False)


def test_rates_are_of_the_time_between_two_screens(tmp_path: Path, played: Played) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def seen() -> TopView:
        with RestingWorkspace.at(str(tmp_path / "mill")) as resting, seen_job(resting, JOB) as job:
            now = workspace_now(resting, RunMemory())
            return TopView(where="x", at=at, now=now, jobs=[job_now(resting, job)])

    before = seen()
    played.do("caption", "videos", 1, 3)
    after = seen()

    assert rates(None, at, after.jobs) == {}
    assert rates(before, at, after.jobs) == {}
    passed = rates(before, at + timedelta(seconds=2), after.jobs)
    assert passed == {(JOB, "caption"): 1.5, (JOB, "by_user"): 0.0, (JOB, "out"): 0.0}


def test_a_terminal_follows_a_job_until_ctrl_c(tmp_path: Path, played: Played) -> None:
    own, terminal = pty.openpty()
    command = [str(Path(sys.executable).with_name("millrace")), "top", str(tmp_path / "mill")]
    process = subprocess.Popen(
        [*command, "--every", "200ms"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"},
    )
    os.close(terminal)
    try:
        assert "6 rows wait" in until(own, "6 rows wait")
        played.do("caption", "videos", 1, 3)
        assert "3 rows wait" in until(own, "3 rows wait")
        process.send_signal(signal.SIGINT)  # What a terminal makes of Ctrl-C.
        until(own, "\x1b[?1049l")  # The screen that was there before comes back.
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(own)


def until(terminal: int, text: str) -> str:
    """What a terminal showed, as soon as it shows a text."""
    shown, end = "", time.monotonic() + WAIT_S
    while text not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                shown += os.read(terminal, 65_536).decode(errors="replace")
            except OSError:  # The other side is closed.
                break
    return shown
