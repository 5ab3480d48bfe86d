"""Processes that own journals or join them, and are killed meanwhile."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pyarrow as pa

import millrace as mr
from millrace.errors import OwnerUnreachable
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.testing.fault_injection import armed
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.local_link import LocalLink
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.workspace import runtime_of

SCHEMA = pa.schema([("x", pa.int64())])
PATIENT = mr.Config().with_options(
    owner_backoff_ms=20, owner_retries_max=12, owner_timeout=90, gone_after=90
)
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.cluster.owners_kit"])


def column(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def all_values(broker: Broker, name: str, column: str = "x") -> list[int]:
    found: list[int] = []
    at = int(broker.start_offset(name))
    while (fetched := broker.read(name, at)).next_offset > at:
        found += fetched.rows()[column].to_pylist()
        at = fetched.next_offset
    return found


def tell(path: str, **what: object) -> None:
    """Add a line, whole, to a file that outlives its process."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(handle, (json.dumps(what) + "\n").encode())
    os.close(handle)


def told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(0.01)


@contextmanager
def process(function: Callable[..., None], *args: object) -> Iterator[ForkServerProcess]:
    """A process of its own, killed at the end."""
    child = FORK.Process(target=function, args=args)
    child.start()
    try:
        yield child
    finally:
        if child.is_alive():
            child.kill()
        child.join(60)


def kill(child: ForkServerProcess) -> None:
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    assert child.exitcode == -signal.SIGKILL


def owned_by(path: Path, child: ForkServerProcess) -> bool:
    """Whether a process says that it answers."""
    try:
        return bool(json.loads((path / "owner.json").read_bytes())["pid"] == child.pid)
    except FileNotFoundError:
        return False


# What the processes do.


def child_owns(path: str, fault: str = "") -> None:
    """Own the journals until killed."""
    if fault:
        os.environ[VARIABLE] = armed(fault)[VARIABLE]
    ws = mr.open(path, create=True, config=PATIENT)
    ws.journals.list()
    assert isinstance(runtime_of(ws).joined_broker()._caller.link(), LocalLink)
    threading.Event().wait()


def child_forks(path: str, pids: str) -> None:
    """Own the journals and leave a forked process behind that does nothing."""
    ws = mr.open(path, config=PATIENT)
    ws.journals.create("a", SCHEMA)
    ws.journals.append("a", column(1))
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    tell(pids, pid=child)
    threading.Event().wait()


def child_is_interrupted(path: str, answers: str) -> None:
    """Own the journals and append in the main thread, where Ctrl-C arrives within calls."""
    ws = mr.open(path, config=PATIENT)
    ws.journals.create("a", SCHEMA)
    inside = False

    def interrupt(_number: int, _frame: object) -> None:
        if inside:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    tell(answers, epoch=runtime_of(ws).joined_broker().epoch)
    for value in itertools.count():
        try:
            inside = True
            ws.journals.append("a", column(value))
            inside = False
            tell(answers, done=value)
        except KeyboardInterrupt:
            inside = False
            tell(answers, interrupted=value)


def child_opens(path: str, start: Barrier, answers: str, number: int) -> None:
    """Open at the same time as others, say who owned, and go on until all are done."""
    ws = mr.open(path, config=PATIENT)
    start.wait(60)
    ws.journals.create("a", SCHEMA)
    ws.journals.append("a", column(number))
    link = runtime_of(ws).joined_broker()._caller.link()
    tell(answers, owns=isinstance(link, LocalLink), epoch=link.epoch)
    start.wait(60)


def child_writes(where: JournalAddress, number: int, answers: str, stop: str) -> None:
    """Append numbered rows until told to stop: those that may be asked again, and plain ones."""
    client = join_journals(where, PATIENT)
    mine = client.producer_id(f"writer/{number}")
    sequence = 0
    while not os.path.exists(stop):
        sequence += 1
        value = number * 1_000_000 + sequence
        client.append("numbered", column(value), producer=mine, sequence=sequence)
        tell(answers, numbered=value)
        try:
            client.append("plain", column(value))
        except OwnerUnreachable:
            tell(answers, doubt=value)
        else:
            tell(answers, plain=value)
    client.close()


@contextmanager
def served(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`millrace serve`, and the line that says where it answers."""
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()", "serve"]
    running = subprocess.Popen(
        [*command, str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    try:
        line = running.stdout.readline()
        if line.startswith("made a new workspace"):
            line = running.stdout.readline()
        yield running, line
    finally:
        running.kill()
        running.communicate(timeout=60)
