"""Retention: what is old goes by itself, and nothing that anybody needs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.unit.shuffle.shuffle_kit import decide, made_from, write

import millrace as mr
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import OffsetOutOfRange, UserError
from millrace.ids import AttemptId, QueryId
from millrace.journal.api import broker_of
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.memory import MemoryBroker
from millrace.keys.key_ranges import WHOLE
from millrace.reads.live.live_reads import LiveReads
from millrace.reads.live.ring import RingKey
from millrace.shuffle import runs
from millrace.storage.local import LocalStore
from millrace.testing.fault_injection import armed
from millrace.upkeep.retention_pass import carry_out, due_rows
from millrace.workspace import Workspace, runtime_of

DAY_MS = 86_400_000
SCHEMA = pa.schema([("x", pa.int64())])
CONFIG = Config(sync=False, upkeep_look_ms=10, retention_interval="1ms")
QUIET = Config(sync=False)


def rows(*values: int) -> pa.Table:
    return pa.table({"x": list(values)}, schema=SCHEMA)


def passed(ws: Workspace, days: float, reading: int | None = None) -> dict[str, int]:
    """The rows that a pass removes so many days from now, by journal."""
    retained = runtime_of(ws).care.retained(broker_of(ws.journals))
    later_ms = time.time_ns() // 1_000_000 + int(days * DAY_MS)
    done = carry_out(replace(retained, now_ms=lambda: later_ms, reading=lambda _name: reading))
    return done.journals


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    keep = mr.Retention(journals={"": "30d", "acme": timedelta(days=7), "acme/slow": "300d"})
    made = mr.open(tmp_path / "mill", retention=keep, config=QUIET)
    for name in ("acme/fast", "acme/slow", "other"):
        made.journals.create(name, SCHEMA)
        made.journals.append(name, rows(1, 2, 3))
    return made


def test_the_longest_prefix_says_how_long_rows_are_kept(ws: Workspace) -> None:
    with ws:
        assert passed(ws, 6.9) == {}
        assert passed(ws, 7.1) == {"acme/fast": 3}
        assert passed(ws, 31) == {"other": 3}
        assert ws.journals.start_offset("acme/slow") == 0
        with pytest.raises(OffsetOutOfRange, match="3"):
            ws.journals.read("other", 0)


def test_rows_that_are_needed_stay_unless_the_rule_says_so(ws: Workspace, tmp_path: Path) -> None:
    with ws:
        ws.journals.commit("billing", "acme/fast", 1, expected=None)
        retained = runtime_of(ws).care.retained(broker_of(ws.journals))
        late = time.time_ns() // 1_000_000 + 8 * DAY_MS
        (due,) = due_rows(replace(retained, now_ms=lambda: late))
        assert (due.begin, due.end, due.old_end, due.needed_by) == (0, 1, 3, "a consumer group")
        assert passed(ws, 8, reading=0) == {}, "an open reader is at the start"
        assert passed(ws, 8) == {"acme/fast": 1}
        assert passed(ws, 8) == {}
        read = mr.CoordinatedRead("all", [mr.Binding(name="o", prefix="other")])
        with ws.reads(read):
            assert passed(ws, 31) == {}, "a session is open that has committed nothing"
    plain = mr.Retention(journals="1d", drop_unread=True)
    with mr.open(tmp_path / "mill", retention=plain, config=QUIET) as again:
        assert passed(again, 2) == {"acme/fast": 2, "acme/slow": 3, "other": 3}
        with pytest.raises(OffsetOutOfRange):
            again.journals.read("acme/fast", again.journals.committed("billing", "acme/fast") or 0)


def test_only_rows_before_the_first_young_one_go(ws: Workspace) -> None:
    with ws:
        time.sleep(0.05)
        middle_ms = time.time_ns() // 1_000_000
        time.sleep(0.05)
        for value in range(4, 40):
            ws.journals.append("other", rows(value))
        retained = runtime_of(ws).care.retained(broker_of(ws.journals))
        carry_out(replace(retained, now_ms=lambda: middle_ms + 30 * DAY_MS))
        assert ws.journals.read("other", 3).rows()["x"].to_pylist() == list(range(4, 40))
        assert ws.journals.start_offset("other") == 3


def test_the_owner_removes_by_itself_and_the_rule_outlives_its_application(tmp_path: Path) -> None:
    mill = tmp_path / "mill"
    with mr.open(mill, retention=mr.Retention(journals=0.2, shuffles="0.2s"), config=QUIET) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.append("a", rows(1, 2))
        ended, resumable = _run(ws), _run(ws)
        runs.end_run(runtime_of(ws).store, ended)
        runs.begin_run(runtime_of(ws).store, plan="last", about={}, now_ms=1000)
        (mill / "shuffle" / str(resumable) / "alive").touch()
    with mr.open(mill, config=CONFIG) as ws:  # Another application, which says nothing of it.
        until(lambda: ws.journals.start_offset("a") == 2)
        until(lambda: ended not in [run.query_id for run in ws.runs()])
        assert resumable in [run.query_id for run in ws.runs()], "it gave a sign of life just now"
        assert ws.retention() == mr.Retention(journals="200ms", shuffles="200ms")
        shown = CliRunner().invoke(cli, ["retention", str(mill)]).output
        assert "journals (all others): kept 200ms" in shown
    with mr.open(mill, retention=mr.Retention(), config=CONFIG) as ws:
        ws.journals.append("a", rows(3))
        assert "everything is kept" in CliRunner().invoke(cli, ["retention", str(mill)]).output


def _run(ws: Workspace) -> QueryId:
    store = runtime_of(ws).store
    assert isinstance(store, LocalStore)
    run = runs.begin_run(store, plan="scan", about={"map_tasks": 1, "stages": 1}, now_ms=1000)
    output = write(
        store, AttemptId.of(run.query_id, 0, 0, 1), rows(1, 2), source=made_from("a.parquet")
    )
    decide(store, run.query_id, [output])
    return run.query_id


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_open_followers_are_known_with_the_lowest_offset_they_may_ask_for() -> None:
    live = LiveReads(MemoryBroker(QUIET), QUIET)
    key = RingKey(journal="a", id=JournalId(1))
    ahead = live.subscribe(key, WHOLE, Offset(7))
    behind = live.subscribe(key, WHOLE, Offset(2))
    assert (live.needed_from("a"), live.needed_from("b")) == (2, None)
    behind.close()
    assert live.needed_from("a") == 7
    ahead.close()
    assert live.needed_from("a") is None


KILLED = -9
PROGRAM = """
import sys, time
import millrace as mr
config = mr.Config(sync=False, upkeep_look_ms=10, retention_interval="1ms")
with mr.open(sys.argv[1], config=config) as ws:
    ws.journals.list()
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "point",
    [
        "retention.after_truncate",
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in (
                "retention.before_shuffles",
                "retention.before_hosts",
                "retention.before_truncate",
            )
        ),
    ],
)
def test_a_pass_that_is_killed_leaves_nothing_half(tmp_path: Path, point: str) -> None:
    mill = tmp_path / "mill"
    keep = mr.Retention(journals="1ms", shuffles="1ms")
    with mr.open(mill, retention=keep, config=QUIET) as ws:
        ws.journals.create("a", SCHEMA)
        ws.journals.create("b", SCHEMA)
        ws.journals.append("a", rows(1, 2))
        ws.journals.append("b", rows(1, 2))
        ws.journals.commit("billing", "b", 1, expected=None)
        runs.end_run(runtime_of(ws).store, _run(ws))

    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(mill)], env=armed(point), check=False, timeout=120
    )

    assert killed.returncode == KILLED
    with mr.open(mill, config=CONFIG) as ws:
        assert ws.verify().problems == ()
        until(lambda: ws.journals.start_offset("a") == 2 and ws.journals.start_offset("b") == 1)
        assert ws.journals.read("b", 1).rows()["x"].to_pylist() == [2]
        until(lambda: not [run for run in ws.runs() if run.query_id == 1])


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ({"journals": "7d"}, "to fix: give mr.Retention"),
        (mr.Retention(shuffles="soon"), "shuffles is not a time"),
        (mr.Retention(journals={"jobs/caption": "7d"}), "of jobs or coordinated reads"),
        (mr.Retention(jobs={3: "7d"}), "a name that is no text"),  # type: ignore[dict-item]
    ],
)
def test_a_rule_that_is_none_is_refused_before_anything_is_made(
    tmp_path: Path, keep: object, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        mr.open(tmp_path / "mill", retention=keep)  # type: ignore[arg-type]
    assert not (tmp_path / "mill").exists()
