"""Spark's stateful operators on `readStream.format("millrace")`: exact after kills.

Four queries run side by side in one application, over journals that two producers go on writing:
the rows themselves, a windowed aggregation with a watermark, `transformWithState`, and a join of
two streams into Spark's file sink. The application is killed, started again with other options, and
at last reads what is available. `state_kit` says why no row is late.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.state_app import AFTER, BEFORE, QUERIES, WRONG
from tests.cluster.state_kit import (
    MARKED_FROM,
    Oracle,
    Writing,
    begun_not_committed,
    make_journals,
    numbers,
)
from tests.laws import seeds

import millrace as mr

APP = Path(__file__).with_name("state_app.py")
ROOT = Path(__file__).parents[2]
LONG_S = 1200
STREAMS = ("rows", "windows", "running", "orders", "payments")
Options = dict[str, dict[str, int]]


class Runs:
    """Starts the application, kills it, and looks at what its sinks hold."""

    def __init__(self, folder: Path, queries: Sequence[str] = QUERIES) -> None:
        self.queries = queries
        self.workspace, self.out = folder / "mill", folder / "out"
        self.out.mkdir()
        self.ws = mr.open(self.workspace)
        make_journals(self.ws)
        self.writing = Writing(self.ws)

    def start(self, options: Options, *, drain: bool = False, **plan: object) -> Running:
        said = {
            "workspace": str(self.workspace),
            "folder": str(self.out),
            "queries": self.queries,
            "options": options,
            "drain": drain,
            "every": "1 second",
            **plan,
        }
        return Running(self, said)

    def die_in(self, options: Options, query: str, moment: str, batches: int) -> None:
        """Let a sink kill everything, before or after it keeps a batch."""
        self.start(options, die=[query, moment], batches=batches).wait_for(-signal.SIGKILL)

    def kill_between_logs(self, options: Options, query: str) -> None:
        """Kill it when a new batch of this query is in the offset log and not in the other."""
        log = self.out / "log" / query
        last = max(numbers(log / "offsets"), default=-1)
        self.start(options).kill_when(lambda: begun_not_committed(log, last))

    def kill_after(self, options: Options, pause_s: float) -> None:
        """Kill it at whatever moment it is, this long after its queries have begun."""
        running = self.start(options)
        until = time.monotonic() + pause_s
        running.kill_when(lambda: running.has_begun() and time.monotonic() > until)

    def finish(self, options: Options) -> None:
        """End the writing, read everything, and compare with the oracle."""
        self.writing.end()
        self.start(options, drain=True).wait_for(0)
        self.ws.close()
        oracle = Oracle(self.writing)
        for query in self.queries:
            assert self.result(query) == getattr(oracle, query)(), query
        self.check_transactions()

    def result(self, query: str) -> list[list[Any]]:
        """What the sink of a query holds."""
        match query:
            case "joined":
                found: list[list[Any]] = json.loads((self.out / "joined.json").read_text())
                return found
            case "windows":
                return [row for row in self.kept(query) if row[0] < MARKED_FROM]
            case _:
                return self.kept(query)

    def batches(self, query: str) -> dict[int, list[list[Any]]]:
        files = (self.out / query).glob("*.json")
        return {int(path.stem): json.loads(path.read_text()) for path in files}

    def kept(self, query: str) -> list[list[Any]]:
        rows = [row for batch in self.batches(query).values() for row in batch]
        return sorted(rows, key=repr)

    def check_transactions(self) -> None:
        """Each batch has whole transactions, so that what is moved in it is nothing."""
        homes: dict[tuple[str, int], int] = {}
        for number, rows in self.batches("rows").items():
            assert sum(row[4] for row in rows) == 0, (number, rows)
            for _, who, txn, _, _ in rows:
                assert homes.setdefault((who, txn), number) == number, (who, txn)


class Running:
    """The application, in a process group of its own."""

    def __init__(self, runs: Runs, plan: dict[str, Any]) -> None:
        self._runs = runs
        self._said = runs.out / f"said-{len(list(runs.out.glob('said-*')))}.txt"
        with self._said.open("w") as said:
            self._child = subprocess.Popen(
                [sys.executable, str(APP), json.dumps(plan)],
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'quick_start'}"},
            )

    def has_begun(self) -> bool:
        return "begun\n" in self.said()

    def said(self) -> str:
        return self._said.read_text()

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        until = time.monotonic() + LONG_S
        try:
            while not is_time():
                assert self._child.poll() is None, self.said()
                assert time.monotonic() < until, self.said()
                time.sleep(0.002)
        finally:
            self._kill()
        self._check()

    def wait_for(self, code: int) -> None:
        try:
            assert self._child.wait(LONG_S) == code, self.said()
        finally:
            self._kill()
        self._check()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def _check(self) -> None:
        for path in self._runs.out.glob(f"*/{WRONG}"):
            raise AssertionError(path.read_text())


def some_options(chance: random.Random) -> Options:
    """Members and limits as they come."""
    options: Options = {}
    for name in STREAMS:
        options[name] = {"members": chance.randint(1, 4)}
        if chance.random() < 0.5:
            options[name]["maxRowsPerTrigger"] = chance.choice((20, 100, 1000))
    return options


@pytest.mark.slow
def test_state_on_streams_is_exact_after_kills(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    few = {name: {"members": 3, "maxRowsPerTrigger": 60} for name in STREAMS}
    runs.die_in(few, "rows", AFTER, 2)  # In its sink, and in Spark's offset log.
    runs.kill_between_logs({"rows": {"members": 1}, "orders": {"members": 4}}, "joined")
    runs.finish({"rows": {"members": 2, "maxRowsPerTrigger": 200}})
    assert len(runs.batches("rows")) > 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(4))
def test_killed_many_times_state_is_exact(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    runs = Runs(tmp_path)
    for _ in range(3):
        options = some_options(chance)
        kind = chance.random()
        if kind < 0.3:
            query, moment = chance.choice(QUERIES[1:]), chance.choice((BEFORE, AFTER))
            runs.die_in(options, query, moment, chance.randint(1, 3))
        elif kind < 0.7:
            runs.kill_between_logs(options, chance.choice(QUERIES))
        else:
            runs.kill_after(options, chance.uniform(0, 12))
    runs.finish(some_options(chance))
