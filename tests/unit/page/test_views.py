"""Values of pages: what they show of many jobs, of runs that were dropped, and their links."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pyarrow as pa
import pytest
from tests.unit.pipeline.played_kit import Played

import millrace as mr
from millrace.ids import QueryId
from millrace.journal.broker import Broker
from millrace.metrics import process_reports
from millrace.metrics.metric import MetricSample
from millrace.metrics.process_metrics import BUSY, TAKEOVERS
from millrace.page import change_marks
from millrace.page.change_marks import ChangeWatch, change_mark
from millrace.page.views import job_views, journal_views, read_views, run_views, workspace_views
from millrace.page.views.look import PAGE_ROWS, Look, NotThere
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import RECORDED, JobRecord
from millrace.pipeline.report.job_report import RunEntry
from millrace.pipeline.report.run_history import RunHistory
from millrace.system import workspace_now
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.workspace_now import RunMemory
from millrace.workspace import runtime_of


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[mr.Workspace]:
    with mr.open(tmp_path / "mill", create=True) as ws:
        yield ws


@pytest.fixture
def resting(workspace: mr.Workspace) -> Iterator[RestingWorkspace]:
    with RestingWorkspace.at(workspace.path) as there:
        yield there


def begin_jobs(broker: Broker, count: int) -> None:
    for number in range(count):
        history = RunHistory.begin(broker, f"job{number:03}")
        history.add(started(f"job{number:03}"))


def started(name: str) -> JobEvent:
    return JobEvent(
        at_us=1,
        run=1,
        happened=JobEventKind.STARTED,
        detail={RECORDED: JobRecord(name).to_json()},
    )


def test_a_job_that_runs_is_on_the_overview_however_many_there_are(
    workspace: mr.Workspace, resting: RestingWorkspace
) -> None:
    broker = runtime_of(workspace).joined_broker()
    begin_jobs(broker, 60)
    begin = workspace_views.overview_page(Look(resting), RunMemory())
    broker.acquire(hops.run_lease("job000"), "a test", lease_ms=600_000)

    page = workspace_views.overview_page(Look(resting), RunMemory())

    assert begin["about"] == "Nothing runs now."
    assert (page["about"], page["running"]) == ("Running now: job job000.", True)
    assert page["jobs"][0]["job"] == "job000"
    assert page["more_jobs"] == 60


def test_a_run_that_was_dropped_is_not_shown_from_memory(
    workspace: mr.Workspace, resting: RestingWorkspace
) -> None:
    memory = RunMemory()
    memory.rows[7] = {"run": 7, "state": "finished"}

    with pytest.raises(NotThere, match="no run 7"):
        run_views.run_page(Look(resting), memory, 7)

    assert 7 not in memory.rows
    assert workspace.path


def test_a_server_remembers_a_limited_number_of_runs(
    workspace: mr.Workspace, resting: RestingWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_now, "run_row", lambda _, n: {"run": n, "state": "finished"})
    memory = RunMemory(runs_max=3)

    for number in (1, 2, 3, 1, 4):
        memory.row(resting, QueryId(number))

    assert set(memory.rows) == {3, 1, 4}, "2 was shown longest ago"
    assert workspace.path


@pytest.mark.parametrize("value", ["a&from=0", "x y", "50%", "é#?"])
def test_links_of_a_journal_keep_what_was_asked(
    workspace: mr.Workspace, resting: RestingWorkspace, value: str
) -> None:
    names = pa.schema([("a&b", pa.string())])
    workspace.journals.create("names", names)
    workspace.journals.append("names", pa.table({"a&b": [value] * 120}, schema=names))

    asked = {"column": "a&b", "value": value, "from": "10"}
    page = journal_views.journal_page(Look(resting, asked), "names")

    for link, begin in (("before", "0"), ("after", "60")):
        assert parse_qs(page["links"][link].removeprefix("?")) == {
            "from": [begin],
            "column": ["a&b"],
            "value": [value],
        }


def test_a_journal_has_a_rate_once_its_rows_came_over_some_time(
    workspace: mr.Workspace, resting: RestingWorkspace
) -> None:
    workspace.journals.create("n", pa.schema([("n", pa.int64())]))

    def seen() -> tuple[float | None, bool]:
        (row,) = journal_views.list_page(Look(resting))["rows"]
        return row["rate"], row["last"] is not None

    assert seen() == (None, False)
    workspace.journals.append("n", pa.table({"n": list(range(50))}))
    assert seen() == (None, True), "rows of one commit have no rate"
    time.sleep(0.15)
    workspace.journals.append("n", pa.table({"n": [1]}))
    rate, _ = seen()
    assert rate is not None
    assert 0 < rate <= 51 / 0.15


def test_a_change_is_marked_and_pages_share_a_look(
    workspace: mr.Workspace, resting: RestingWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = change_mark(resting)
    assert change_mark(resting) == before

    Played.started(runtime_of(workspace).joined_broker())

    assert change_mark(resting) != before
    looks: list[RestingWorkspace] = []

    def look(at: RestingWorkspace) -> tuple[()]:
        looks.append(at)
        return ()

    monkeypatch.setattr(change_marks, "change_mark", look)
    watch = ChangeWatch(resting)
    assert [watch.mark() for _ in range(5)] == [()] * 5
    assert len(looks) == 1


def test_who_joined_is_who_gave_a_sign_of_life_lately(
    workspace: mr.Workspace, resting: RestingWorkspace
) -> None:
    workspace.journals.create("n", pa.schema([("n", pa.int64())]))
    store, now = resting.store, time.time()
    store.make_folder(process_reports.FOLDER)
    own = process_reports.process_name()
    for name, at, samples in (
        ("owner", now, [MetricSample(TAKEOVERS.metric.name, (own,), 1.0)]),
        ("worker", now - 5, [MetricSample(BUSY.metric.name, ("captions", "ask", "box:7"), 2.0)]),
        (
            "killed",
            now - 2 * process_reports.OLD_S,
            [MetricSample(BUSY.metric.name, ("j", "s", "box:8"), 2.0)],
        ),
    ):
        store.replace(f"{process_reports.FOLDER}/{name}.json", process_reports.encode(samples, at))

    page = workspace_views.workspace_page(Look(resting), has_doctor=False)

    assert [(each["name"], each["part"]) for each in page["processes"]] == [
        (own, "owns the journals"),
        ("box:7", "works on captions"),
    ]


def test_groups_of_a_journal_are_paged(workspace: mr.Workspace, resting: RestingWorkspace) -> None:
    workspace.journals.create("n", pa.schema([("n", pa.int64())]))
    workspace.journals.append("n", pa.table({"n": [1]}))
    for number in range(PAGE_ROWS + 2):
        workspace.journals.commit(f"group{number}", "n", 0, expected=None)

    first = journal_views.journal_page(Look(resting), "n")
    second = journal_views.journal_page(Look(resting, {"at": str(PAGE_ROWS)}), "n")

    assert (len(first["groups"]), len(second["groups"])) == (PAGE_ROWS, 2)
    assert first["group_links"]["after"].endswith(f"?at={PAGE_ROWS}")


def test_open_transactions_of_a_journal_are_paged_and_counted_whole(
    workspace: mr.Workspace, resting: RestingWorkspace
) -> None:
    workspace.journals.create("n", pa.schema([("n", pa.int64())]))
    with contextlib.ExitStack() as kept:
        for number in range(PAGE_ROWS + 2):
            producer = kept.enter_context(workspace.journals.producer(f"shop{number}"))
            producer.append("n", pa.table({"n": [number]}))
        first = journal_views.journal_page(Look(resting), "n")
        asked = {"open_at": str(PAGE_ROWS), "column": "n"}
        second = journal_views.journal_page(Look(resting, asked), "n")

    assert (len(first["opened"]), len(second["opened"])) == (PAGE_ROWS, 2)
    assert ("open transactions", str(PAGE_ROWS + 2), "") in first["figures"]
    assert first["opened_links"]["after"] == f"/journal/n?open_at={PAGE_ROWS}"
    assert parse_qs(second["opened_links"]["before"].partition("?")[2]) == {
        "column": ["n"],
        "open_at": ["0"],
    }


def test_a_read_shows_what_its_members_send_each_other(
    workspace: mr.Workspace, resting: RestingWorkspace
) -> None:
    workspace.journals.create("n", pa.schema([("n", pa.int64())]))
    workspace.journals.append("n", pa.table({"n": list(range(100))}))
    read = mr.CoordinatedRead("all", [mr.Binding(name="all", prefix="n", key=["n"])])
    with workspace.reads(read, members=2) as session:
        assert session.next_checkpoint(timeout=30) is not None
        told = session.status().streams
        until = time.monotonic() + 30
        while not (page := read_views.read_page(Look(resting), "all"))["streams"]:
            assert time.monotonic() < until
            time.sleep(0.1)

    assert [(s["sender"], s["receiver"], s["rows"]) for s in page["streams"]] == [
        (one.sender, one.receiver, one.rows) for one in told
    ]
    assert sum(one.rows for one in told) == 100
    assert {one.receiver for one in told} == {0, 1}


def test_each_list_of_a_page_is_paged_by_itself(resting: RestingWorkspace) -> None:
    many = list(range(PAGE_ROWS + 1))
    look = Look(resting, {"at": "50", "errors_at": "0"})

    assert look.page("/x", many[:3], at="other") == (many[:3], None)
    shown, links = look.page("/x", many, at="errors_at")
    assert (shown, links and links["after"]) == (many[:-1], "/x?at=50&errors_at=50")
    shown, links = look.page("/x", many)
    assert (shown, links and links["before"]) == ([50], "/x?errors_at=0&at=0")


def test_rows_over_time_begin_with_the_run_and_not_with_its_first_sample() -> None:
    entry = RunEntry(number=1, state="finished", started_us=0, ended_us=50_000_000, who="ann")

    shown = job_views.since_begin(entry, [(0.0, [0]), (10.0, [3])])

    assert shown == [(0.0, [0]), (40.0, [0]), (50.0, [3])]
