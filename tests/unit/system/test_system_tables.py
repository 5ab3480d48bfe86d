"""System tables say what the Python API says, of journals whoever keeps their ledger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.pipeline.played_kit import JOB, Played
from tests.unit.shuffle.shuffle_kit import begin, column, decide, write

import millrace as mr
from millrace.errors import UserError
from millrace.ids import AttemptId
from millrace.journal.core.journal_names import JournalChoice
from millrace.pipeline.core import hops
from millrace.pipeline.paid.call_records import Totals
from millrace.pipeline.run.job_status import job_status
from millrace.storage.local import LocalStore
from millrace.system.call_tables import last_call_rows
from millrace.system.catalog import TABLES
from millrace.system.job_reading import seen_job
from millrace.system.questions import SystemTables
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.system_table import Asked
from millrace.workspace import runtime_of

ROWS = pa.schema([("n", pa.int64())])


@pytest.fixture(params=["sqlite", "files"])
def played(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[mr.Workspace, Played]]:
    with mr.open(tmp_path / "mill", ledger=request.param) as ws:
        job = Played.started(runtime_of(ws).joined_broker())
        for partition in range(2):
            job.do("caption", "videos", partition, 4)
            job.record_calls(partition, Totals(calls=5, in_doubt=1))
            job.do("by_user", "caption", partition, 4)
        job.dead_letter("caption")
        yield ws, job


def rows(path: str, table: str, **equal: object) -> list[dict[str, object]]:
    with RestingWorkspace.at(path) as resting:
        found: list[dict[str, object]] = (
            SystemTables(resting).table(table, Asked(equal=equal)).to_pylist()
        )
        return found


def test_steps_say_what_the_status_of_the_job_says(played: tuple[mr.Workspace, Played]) -> None:
    ws, job = played

    told = {step.name: asdict(step) for step in job_status(job.broker, JOB).steps}

    for row in rows(ws.path, "steps", job=JOB):
        expected = told[str(row["step"])]
        assert {name: row[name] for name in expected if name in row and name != "rows_per_s"} == {
            name: value for name, value in expected.items() if name in row and name != "rows_per_s"
        }


def test_a_look_sees_what_came_since_the_last_one(played: tuple[mr.Workspace, Played]) -> None:
    ws, job = played
    with RestingWorkspace.at(ws.path) as resting:
        tables = SystemTables(resting)
        before = tables.table("steps").to_pylist()

        job.do("caption", "videos", 0, 1)

        after = tables.table("steps").to_pylist()
    done = [(b["rows_in"], a["rows_in"]) for b, a in zip(before, after, strict=True)]
    assert done == [(8, 9), (8, 8), (0, 0)]


def test_journals_are_those_that_the_owner_lists(played: tuple[mr.Workspace, Played]) -> None:
    ws, _ = played

    found = rows(ws.path, "journals")

    assert [row["journal"] for row in found] == [info.name for info in ws.journals.list()]
    ends = {row["journal"]: int(str(row["end"])) for row in found}
    assert all(
        ends[info.name] >= ws.journals.read(info.name, 0).next_offset for info in ws.journals.list()
    )
    group = hops.step_root(JOB, "caption")
    (lag,) = [
        row["lag"]
        for row in rows(ws.path, "groups", journal=hops.output_journal(JOB, "videos", 0))
        if row["group"] == group
    ]
    assert lag == ws.journals.backlog(group, hops.output_journal(JOB, "videos", 0))


def test_calls_and_letters_are_the_rows_of_their_journals(
    played: tuple[mr.Workspace, Played],
) -> None:
    ws, _ = played

    calls = rows(ws.path, "calls", job=JOB, step="caption")
    (letter,) = rows(ws.path, "dead_letters")

    assert [call["total_calls"] for call in calls] == [1, 5, 1, 5]
    assert {call["step"] for call in calls} == {"caption"}
    assert rows(ws.path, "calls", job=JOB, step="by_user") == []
    assert (letter["job"], letter["step"], letter["row"]) == (JOB, "caption", '{"n": 1}')
    with RestingWorkspace.at(ws.path) as resting, seen_job(resting, JOB) as job:
        youngest = last_call_rows(job, None, 1)
    assert youngest.num_rows == 1
    assert youngest["at"][0].as_py() == max(call["at"] for call in calls)  # type: ignore[type-var]


def test_an_open_transaction_and_its_holder_are_named(tmp_path: Path) -> None:
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("orders", ROWS)
        till = ws.journals.producer("till")
        till.append("orders", pa.table({"n": [1]}))

        (found,) = rows(ws.path, "open_transactions")

    assert (found["journal"], found["name"], found["begin"]) == ("orders", "till", 0)


def test_a_workspace_without_journals_has_empty_tables(tmp_path: Path) -> None:
    mr.open(tmp_path / "mill", create=True).close()

    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        counts = {name: SystemTables(resting).table(name).num_rows for name in TABLES}

    assert counts.pop("files") > 0
    assert set(counts.values()) == {0}


def test_partitions_are_those_of_the_manifest(tmp_path: Path) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    store = LocalStore(str(tmp_path / "mill"))
    run = begin(store)
    decided = decide(
        store, run, [write(store, AttemptId.of(run, 0, n, 1), column([n, 2, 3])) for n in (0, 1)]
    )
    with mr.open(tmp_path / "mill") as ws:
        shuffle = ws.open_shuffle(run)

    found = rows(str(tmp_path / "mill"), "partitions")
    tasks = rows(str(tmp_path / "mill"), "tasks")

    assert [(row["partition"], row["rows"], row["bytes"]) for row in found] == [
        (size.partition, size.rows, size.bytes) for size in shuffle.sizes
    ]
    assert [row["attempt"] for row in tasks] == [str(c.attempt) for c in decided.chosen]


def test_looking_loads_neither_spark_nor_flight(tmp_path: Path) -> None:
    mr.open(tmp_path / "mill", create=True).close()
    program = (
        "import sys\n"
        "from millrace.system.resting_workspace import RestingWorkspace\n"
        "from millrace.system.questions import SystemTables\n"
        "with RestingWorkspace.at(sys.argv[1]) as w:\n"
        "    SystemTables(w).ask('SELECT count(*) FROM runs')\n"
        "print([m for m in ('pyspark', 'py4j') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "mill")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    assert done.stdout.strip() == "[]"


def test_a_question_by_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    mr.open(tmp_path / "mill", create=True).close()

    with RestingWorkspace.at(str(tmp_path / "mill")) as resting:
        tables = SystemTables(resting)
        with pytest.raises(UserError, match="its keys are run"):
            tables.table("runs", Asked(equal={"state": "died"}))
        with pytest.raises(UserError, match="no system table 'call'"):
            tables.table("call")


def test_a_choice_of_journals_has_their_spans_once() -> None:
    choice = JournalChoice(names=("a",), prefixes=("a", "a/b", "ab/"))

    assert choice.spans() == (
        ("a", "a\0"),
        ("a/b", "a/b\0"),
        ("ab/", "ab/\0"),
        ("a/", "a0"),
        ("ab/", "ab0"),
    )
