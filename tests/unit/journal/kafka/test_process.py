"""Broker processes are ready when they answer, and gone when they or their starter end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.config import Config
from millrace.errors import Retriable, UserError
from millrace.testing import kafka_server
from millrace.testing.managed_process import ManagedProcess, answers, free_ports

CONFIG = Config().with_options(kafka_stop_ms_max=500, kafka_start_ms_max=30_000)
# Stands for a broker: listens, says its own number and that of a child it started.
LISTEN = """
import os, signal, socket, subprocess, sys, time
if sys.argv[3:] == ["stubborn"]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[2], "w").write(f"{os.getpid()} {child.pid}")
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie nobody waited for counts as there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # In a container nobody may collect what has lost its parent.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2] == ["Z", "1"]
    return False


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Listening:
    def __init__(self, folder: Path, *more: str) -> None:
        self.port = free_ports(1)[0]
        self.told = folder / "pids"
        self.log = str(folder / "log")
        self.command = [sys.executable, "-c", LISTEN, str(self.port), str(self.told), *more]

    def start(self) -> ManagedProcess:
        return ManagedProcess.start(
            self.command,
            log=self.log,
            is_ready=lambda: answers("127.0.0.1", self.port),
            config=CONFIG,
        )

    def pids(self) -> list[int]:
        wait_for(lambda: self.told.exists() and self.told.read_text().count(" ") == 1)
        return [int(each) for each in self.told.read_text().split()]


@pytest.fixture(params=["", "stubborn"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path, *request.param.split())
    yield made
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for pid in made.told.read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_a_process_is_ready_when_it_answers_and_gone_when_it_is_stopped(
    listening: Listening,
) -> None:
    process = listening.start()

    assert answers("127.0.0.1", listening.port)
    assert process.is_running()
    process.stop()
    assert not process.is_running()
    assert not answers("127.0.0.1", listening.port)
    wait_for(lambda: all(is_gone(pid) for pid in (process.pid, *listening.pids())))
    process.stop()


def test_a_process_whose_guard_is_killed_goes_with_it(tmp_path: Path) -> None:
    listening = Listening(tmp_path, "stubborn")
    process = listening.start()
    broker, child = listening.pids()
    process.kill()

    wait_for(lambda: is_gone(broker))
    os.kill(child, signal.SIGKILL)


STARTER = """
import sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from tests.unit.journal.kafka.test_process import Listening
mine = Listening(Path({folder!r}))
mine.start()
print("ready", flush=True)
time.sleep(600)
"""


def test_a_process_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    script = STARTER.format(path=sys.path, folder=str(tmp_path))
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"ready\n"
    pids = [int(each) for each in (tmp_path / "pids").read_text().split()]
    starter.kill()
    starter.wait()
    starter.stdout.close()

    wait_for(lambda: all(map(is_gone, pids)))


def test_what_ends_or_never_answers_is_said_with_what_it_wrote(tmp_path: Path) -> None:
    quick = CONFIG.with_options(kafka_start_ms_max=300)
    command = [sys.executable, "-c", "import sys; print('no room'); sys.exit(3)"]
    with pytest.raises(
        UserError, match="ended before it was ready, with code 3\n  it wrote: no ro"
    ):
        ManagedProcess.start(
            command, log=str(tmp_path / "a"), is_ready=lambda: False, config=CONFIG
        )
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    with pytest.raises(Retriable, match=r"not ready within 300 ms \(kafka_start_ms_max\)"):
        ManagedProcess.start(sleeper, log=str(tmp_path / "b"), is_ready=lambda: False, config=quick)
    with pytest.raises(UserError, match="ended before it was ready"):
        ManagedProcess.start(
            [str(tmp_path / "none")], log=str(tmp_path / "c"), is_ready=lambda: False, config=CONFIG
        )


# Fetching Kafka.


def test_without_maven_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UserError, match="to fix: install Maven"):
        kafka_server.fetch_jars(str(tmp_path), Config())


def fake_maven(folder: Path, script: str) -> str:
    path = folder / "mvn"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_repository_out_of_reach_is_said_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("PATH", fake_maven(tmp_path, "echo Unknown host; exit 1"))
    with pytest.raises(Retriable, match="could not fetch Kafka's jars\n  it said: Unknown host"):
        kafka_server.fetch_jars(str(cache), Config())
    monkeypatch.setenv("PATH", fake_maven(tmp_path, "sleep 600"))
    with pytest.raises(Retriable, match=r"within 200 ms \(kafka_fetch_ms_max\)"):
        kafka_server.fetch_jars(str(cache), Config().with_options(kafka_fetch_ms_max=200))
    monkeypatch.setenv("PATH", fake_maven(tmp_path, "exit 0"))
    with pytest.raises(Retriable, match="could not fetch"):
        kafka_server.fetch_jars(str(cache), Config())

    assert [each for each in cache.rglob("*") if each.is_file()] == []
    assert not list(cache.rglob("libs"))


def test_jars_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'for a in "$@"; do case $a in -DoutputDirectory=*) touch "${a#*=}/k.jar";; esac; done'
    monkeypatch.setenv("PATH", fake_maven(tmp_path, script))
    libs = kafka_server.fetch_jars(str(tmp_path / "cache"), Config())

    assert os.listdir(libs) == ["k.jar"]
    monkeypatch.setenv("PATH", "")
    assert kafka_server.fetch_jars(str(tmp_path / "cache"), Config()) == libs
    assert kafka_server.kafka_version() in libs


def test_the_tests_and_users_get_the_same_kafka() -> None:
    here = Path(__file__).parents[4]

    assert (here / "tests" / "kafka" / "pom.xml").resolve() == Path(kafka_server.POM).resolve()
    assert kafka_server.cache_folder({"MILLRACE_CACHE": "/c"}) == "/c"
    assert kafka_server.cache_folder({"XDG_CACHE_HOME": "/x"}) == "/x/millrace"
