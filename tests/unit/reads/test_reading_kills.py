"""A session killed with SIGKILL: what was handed out comes again exactly, the rest once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.laws import few_quick
from tests.unit.reads.kit import SCHEMA, ack, row, write

import millrace as mr
from millrace.testing.fault_injection import POINTS, armed
from millrace.workspace import runtime_of

CHILD = Path(__file__).with_name("reader_child.py")
TRANSACTIONS = 150
JOURNALS = 3


def fill(workspace: Path) -> dict[str, set[str]]:
    """Transactions over two journals each; the rows of each."""
    written: dict[str, set[str]] = {}
    with mr.open(workspace) as ws:
        infos = [ws.journals.create(f"t/{n}", SCHEMA) for n in range(JOURNALS)]
        clock = 100
        rows: dict[int, list[tuple[object, ...]]] = {n: [] for n in range(JOURNALS)}
        for number in range(TRANSACTIONS):
            producer = 1 + number % 4
            both = [number % JOURNALS, (number + 1) % JOURNALS]
            names = [f"{number}-{place}-{n}" for place in both for n in range(3)]
            written[str(number)] = set(names)
            for place in both:
                mine = [name for name in names if name.split("-")[1] == str(place)]
                rows[place] += [row(producer, clock + n, each) for n, each in enumerate(mine)]
                others = [infos[each].id for each in both if each != place]
                rows[place].append(ack(producer, clock + 10, others))
            clock += 20
        for place, some in rows.items():
            write(runtime_of(ws).joined_broker(), f"t/{place}", *some)
    return written


def start(
    workspace: Path, out: Path, members: int, wanted: int, fault: str | None = None
) -> subprocess.Popen[str]:
    out.mkdir(exist_ok=True)
    args = [sys.executable, str(CHILD), str(workspace), str(out), str(members), str(wanted)]
    environment = {**os.environ, **({} if fault is None else armed(fault))}
    return subprocess.Popen(args, env=environment, text=True, stderr=subprocess.PIPE)


def check(out: Path, written: dict[str, set[str]]) -> None:
    """Every row once, and every transaction in one checkpoint."""
    seen: list[str] = []
    for path in out.glob("*.json"):
        rows = json.loads(path.read_text())
        seen += rows
        for number in {each.split("-")[0] for each in rows}:
            assert {each for each in rows if each.split("-")[0] == number} == written[number]
    assert sorted(seen) == sorted(set().union(*written.values()))


@pytest.mark.parametrize(
    "point", few_quick((point for point in POINTS if point.startswith("reads.")), 2)
)
def test_killed_at_each_point_it_goes_on_where_it_was(point: str, tmp_path: Path) -> None:
    written = fill(tmp_path / "mill")
    wanted = sum(map(len, written.values()))
    first = start(tmp_path / "mill", tmp_path / "out", 2, wanted, point)
    _, said = first.communicate(timeout=120)
    assert first.returncode == -signal.SIGKILL, said
    again = start(tmp_path / "mill", tmp_path / "out", 3, wanted)
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    check(tmp_path / "out", written)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_moment_again_and_again_it_goes_on(seed: int, tmp_path: Path) -> None:
    written = fill(tmp_path / "mill")
    wanted = sum(map(len, written.values()))
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    for _ in range(4):
        child = start(tmp_path / "mill", tmp_path / "out", chance.randint(1, 4), wanted)
        time.sleep(chance.uniform(0.5, 2.0))
        child.kill()
        _, said = child.communicate()
        assert "AssertionError" not in said, said
    last = start(tmp_path / "mill", tmp_path / "out", 2, wanted)
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said
    check(tmp_path / "out", written)
