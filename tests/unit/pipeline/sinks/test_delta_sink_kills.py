"""Workers and drivers of a Delta sink killed with SIGKILL, beside another writer of the table."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.laws import examples
from tests.unit.journal.kills_kit import KILLED
from tests.unit.pipeline.sinks.delta_sink_kit import (
    FORK,
    KEYS,
    UNITS,
    another_writes,
    child_dies_at,
    finish,
    prepare,
    rows_in,
    serve_children,
)

from millrace.testing.fault_injection import POINTS

DELTA = [point for point in POINTS if point.startswith(("sink.table.", "delta."))]
OF_KEYS = [point for point in DELTA if point.startswith("delta.merge.")]
KILLS, SLOW_KILLS = 20, 500
JUDGED_EVERY = 5


def die_at(folder: Path, point: str, *, by_key: bool) -> None:
    mill, table = str(folder / "mill"), str(folder / "t")
    names = prepare(mill, table, by_key=by_key)

    child = FORK.Process(target=child_dies_at, args=(mill, table, point), kwargs={"by_key": by_key})
    child.start()
    child.join(60)
    assert child.exitcode == KILLED

    finish(mill, table, names, by_key=by_key)
    assert [x for x in rows_in(table) if x < 0] in ([], [-1])


@pytest.mark.parametrize("point", [point for point in DELTA if point not in OF_KEYS])
def test_a_process_killed_at_any_point_leaves_each_row_once(tmp_path: Path, point: str) -> None:
    die_at(tmp_path, point, by_key=False)


@pytest.mark.parametrize(
    "point", [point for point in DELTA if "commit." in point or point in OF_KEYS]
)
def test_a_process_killed_at_any_point_leaves_the_last_row_of_each_key(
    tmp_path: Path, point: str
) -> None:
    die_at(tmp_path, point, by_key=True)


def files_in(table: str) -> int:
    """All data files but those of the other writer, committed or not."""
    return sum(name.startswith("part-0000") for name in os.listdir(table))


def kill_many(folder: Path, kills: int, *, by_key: bool = False) -> None:
    """Kill one process after the other; another writer commits all the while."""
    mill, table = str(folder / "mill"), str(folder / "t")
    names = prepare(mill, table, by_key=by_key)
    chance = random.Random(kills)  # noqa: S311 - a seed replays the times, if not what they meet
    theirs = 0
    calls, theirs_end = FORK.Pipe()
    server = FORK.Process(
        target=serve_children, args=(mill, table, theirs_end), kwargs={"by_key": by_key}
    )
    server.start()
    child: int | None = None
    try:
        for number in range(kills):
            calls.send(number)
            child = calls.recv()
            until, enough = time.monotonic() + 60, files_in(table) + chance.randint(1, 12)
            while files_in(table) < enough:
                assert time.monotonic() < until, "the child does not get on"
                time.sleep(chance.uniform(0, 0.02))
            if chance.random() < 0.5:
                theirs += 1
                another_writes(table, theirs)
            os.kill(child, signal.SIGKILL)
            calls.send("reap")
            assert calls.recv() == KILLED, "the child ended by itself"
            child = None
            if number % JUDGED_EVERY == JUDGED_EVERY - 1:
                finish(mill, table, names, by_key=by_key)
    finally:
        if child is not None:  # It would go on for good.
            os.kill(child, signal.SIGKILL)
        server.kill()
        server.join()
    finish(mill, table, names, by_key=by_key)
    found = rows_in(table)
    assert [x for x in found if x < 0] == [-n for n in range(theirs, 0, -1)]
    most = UNITS * KEYS if by_key else len(found)
    assert min(kills, most // 2) < len(found) - theirs <= most, "rows came to be written"


def test_rows_are_there_once_whenever_processes_are_killed(tmp_path: Path) -> None:
    kill_many(tmp_path, KILLS)


def test_the_last_row_of_each_key_is_there_whenever_processes_are_killed(tmp_path: Path) -> None:
    kill_many(tmp_path, KILLS, by_key=True)


@pytest.mark.slow
def test_the_last_row_of_each_key_is_there_after_hundreds_of_kills(tmp_path: Path) -> None:
    kill_many(tmp_path, examples(SLOW_KILLS), by_key=True)


@pytest.mark.slow
def test_rows_are_there_once_after_hundreds_of_kills(tmp_path: Path) -> None:
    kill_many(tmp_path, examples(SLOW_KILLS))
