"""Starts and kills applications that write with `format("millrace")`, and looks what they left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr
from millrace.errors import JournalUnknown
from millrace.faults import VARIABLE
from millrace.testing.fault_injection import armed
from millrace.workspace import runtime_of

SCHEMA: Final = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
READ: Final = {"name": "chain", "bindings": [{"name": "all", "prefix": "in", "key": ["key"]}]}
INPUTS: Final = ("in/a", "in/b")
OUTPUTS: Final = ("out/0", "out/1")
ROWS: Final = 5
"""Of a transaction in each journal; of a file there are as many as of a transaction."""
BATCH_ROWS: Final = 3_000
WAIT_S: Final = 900
"""For what may take long on a busy machine."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where everything lies."""

    root: str

    @property
    def workspace(self) -> str:
        """The workspace."""
        return os.path.join(self.root, "mill")

    @property
    def files(self) -> str:
        """What a stream of files reads."""
        return os.path.join(self.root, "files")

    @property
    def log(self) -> str:
        """Spark's own."""
        return os.path.join(self.root, "log")


class Application:
    """Runs `source_write_app.py` again and again, each time with more to read."""

    def __init__(self, folder: Path, kind: str) -> None:
        """`kind`: what is streamed, "read" or "files"."""
        self.folders = Folders(str(folder))
        self._kind = kind
        self._folder = folder
        self._numbers = 0
        """Of transactions, or files, so far."""
        self._starts = 0
        Path(self.folders.files).mkdir()

    # Runs.
    def die_at(self, point: str, *, stream: int = 0, batch: str = "") -> None:
        """Be killed in the middle of the last that it does; `stream` says how much is new."""
        marker = self._folder / f"marker-{self._starts}"
        fault = self._folder / f"fault-{self._starts}"
        env = armed(point, "sleep=3600", once=marker)
        arm = {"arm": str(fault), "with": env[VARIABLE]}
        with self._started(stream, batch, {**env, VARIABLE: f"@{fault}"}, arm) as child:
            self._wait(child, marker.exists)

    def die_by_chance(self, chance: random.Random, *, stream: int = 0, batch: str = "") -> None:
        """Be killed at any moment, a little after it has come so and so far.

        Sometimes its tasks and other processes live on for a while.
        """
        wanted = self._noted() + chance.randint(0, 2)
        with self._started(stream, batch, dict(os.environ)) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begun\n", self._said()
            if stream:
                self._wait(child, lambda: self._noted() >= wanted)
            time.sleep(chance.uniform(0, 2))
            if chance.random() < 0.5:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                time.sleep(chance.uniform(0, 2))

    def run(self, *, stream: int = 0, batch: str = "") -> None:
        """Write everything there is."""
        with self._started(stream, batch, dict(os.environ)) as child:
            out, _ = child.communicate(timeout=WAIT_S)
            wanted = ["begun", *(["streamed"] if stream else []), *(["written"] if batch else [])]
            assert out.split() == wanted, self._said()

    # What they left.
    def check_stream(self) -> None:
        """Each row that was read is in the journals once, and each micro-batch is one ACK."""
        expected = [[k, n] for n in range(self._numbers) for k in range(ROWS) for _ in INPUTS]
        with mr.open(self.folders.workspace) as ws:
            tables = [ws.journals.read(name, 0).rows() for name in OUTPUTS]
            raw = [ws.journals.read(name, 0, isolation="raw").stored() for name in OUTPUTS]
        found = [list(row.values()) for table in tables for row in table.to_pylist()]
        assert sorted(found) == sorted(expected)
        keys = [set(table["key"].to_pylist()) for table in tables]
        assert not keys[0] & keys[1]
        acks = [[row["_mr_clock"] for row in t.to_pylist() if row["_mr_hints"]] for t in raw]
        assert acks[0] == acks[1]
        assert len(acks[0]) > 1

    def batch_rows(self, name: str) -> int:
        """How many rows a batch left: all or none."""
        with mr.open(self.folders.workspace) as ws:
            try:
                found = ws.journals.read(name, 0).rows()["id"].to_pylist()
            except JournalUnknown:
                return 0
        assert found in ([], list(range(BATCH_ROWS)))
        return len(found)

    # Inside.
    @property
    def _errors(self) -> Path:
        return self._folder / f"errors-{self._starts}"

    def _said(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    @contextlib.contextmanager
    def _started(
        self, more: int, batch: str, env: dict[str, str], arm: dict[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """A run that does not outlive the block, nor does anything that it started."""
        self._starts += 1
        self._add(more)
        given: dict[str, Any] = {"folder": self.folders.root, "rows": BATCH_ROWS, "batch": batch}
        given |= {"stream": self._kind if more else "", **(arm or {})}
        program = str(Path(__file__).with_name("source_write_app.py"))
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with open(self._errors, "w", encoding="utf-8") as errors:  # Nobody would read a pipe.
            child = subprocess.Popen(
                [sys.executable, program, json.dumps(given)],
                env={**env, "PYTHONPATH": path},
                text=True,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        try:
            yield child
        finally:
            kill_session(child.pid)
            child.communicate(timeout=WAIT_S)

    def _add(self, more: int) -> None:
        numbers = range(self._numbers, self._numbers + more)
        self._numbers = numbers.stop
        tables = {
            n: pa.table({"key": range(ROWS), "amount": [n] * ROWS}, schema=SCHEMA) for n in numbers
        }
        if self._kind == "files":
            for number, table in tables.items():
                whole = pa.concat_tables([table] * len(INPUTS))
                fresh = self._folder / "fresh.parquet"
                pq.write_table(whole, fresh)
                fresh.rename(Path(self.folders.files) / f"{number}.parquet")
            return
        with mr.open(self.folders.workspace) as ws:
            runtime_of(ws).joined_broker().create_many(INPUTS, SCHEMA)
            with ws.journals.producer("writer") as writer:
                for table in tables.values():
                    for name in INPUTS:
                        writer.append(name, table)
                    writer.commit()

    def _noted(self) -> int:
        """What Spark's log has: batches that were begun and that have ended."""
        return len([path for path in Path(self.folders.log).glob("*/*") if path.name.isdecimal()])

    def _wait(self, child: subprocess.Popen[str], until: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not until():
            if child.poll() is not None:
                raise AssertionError(self._said())
            assert time.monotonic() < end
            time.sleep(0.05)


def kill_session(session: int) -> None:
    """Kill all processes of a session, those in groups of their own, too."""
    while True:
        every = map(int, filter(str.isdecimal, os.listdir("/proc")))
        found = [pid for pid in every if _of(pid, session)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _of(pid: int, session: int) -> bool:
    """Whether a process that can be killed is one of a session."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    state, _parent, _group, its = stat.rpartition(")")[2].split()[:4]
    return int(its) == session and state != "Z"
