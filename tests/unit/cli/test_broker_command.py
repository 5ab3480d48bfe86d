"""`millrace broker start` with a command: says the address, ends cleanly, leaves nobody behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.journal.kafka.test_process import Listening, is_gone, wait_for

from millrace.cli.broker_command import broker
from millrace.errors import UserError


def run(listening: Listening, folder: Path, *more: str) -> subprocess.Popen[str]:
    line = " ".join(f"'{each}'" for each in listening.command)
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()"]
    command += ["broker", "start", "--command", line, "--ready", f"127.0.0.1:{listening.port}"]
    return subprocess.Popen(
        [*command, "--folder", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_is_started_and_ended(tmp_path: Path, number: signal.Signals) -> None:
    listening = Listening(tmp_path)
    started = run(listening, tmp_path / "data")
    assert started.stdout is not None

    assert started.stdout.readline() == f"kafka://127.0.0.1:{listening.port}\n"
    pids = listening.pids()
    started.send_signal(number)
    out, errors = started.communicate(timeout=60)
    assert (started.returncode, out) == (0, "")
    assert "Traceback" not in errors
    assert all(map(is_gone, pids))


def test_a_broker_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    listening = Listening(tmp_path)
    started = run(listening, tmp_path / "data")
    assert started.stdout is not None
    started.stdout.readline()
    os.kill(listening.pids()[0], signal.SIGKILL)
    _, errors = started.communicate(timeout=60)

    assert started.returncode == 1
    assert "error: the broker ended by itself, with code 137" in errors
    wait_for(lambda: all(map(is_gone, listening.pids())))


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--kafka", "--command", "x"],
        ["--command", "x"],
        ["--command", "x", "--ready", "here"],
        ["--kafka", "--ready", "a:1"],
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str]) -> None:
    result = CliRunner().invoke(broker, ["start", *options])

    assert isinstance(result.exception, UserError)
    assert "to fix:" in str(result.exception)
