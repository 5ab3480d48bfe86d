"""Pages of a workspace in which Spark ran: numbers, clicks, accessibility, pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.browser_kit import Browser, beyond
from tests.browser.conftest import ROOT, served

import millrace as mr

pytestmark = pytest.mark.slow
PAGES = {
    "overview": "/",
    "runs": "/runs",
    "run": "/runs/3",
    "stage": "/runs/3/stages/0",
    "keys": "/runs/3/stages/0/keys/3",
    "compare": "/compare?a=1&b=3",
    "jobs": "/jobs",
    "job": "/jobs/reviews",
    "step": "/jobs/reviews/steps/review",
    "retry": "/jobs/reviews/retry",
    "journals": "/journals",
    "journal": "/journal/shop/north",
    "reads": "/reads",
    "read": "/reads/totals",
    "workspace": "/workspace",
    "ask": "/ask?q=SELECT+run,+state,+seconds,+rows+FROM+runs",
}
WIDTHS = (390, 768, 1280, 2560)


@pytest.fixture
def url(recorded: Path) -> Iterator[str]:
    server = served(recorded / "mill")
    yield server.place.url.rstrip("/")
    server.close()


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_fault_of_accessibility(
    window: Browser, url: str, scheme: str
) -> None:
    window.colours(scheme)
    for name, page in PAGES.items():
        window.open(url + page)
        window.wait_for("document.querySelector('h1')")
        assert window.faults() == [], name
        assert window.complaints() == [], name
        assert beyond(window.asked()) == [], name


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_window(window: Browser, url: str, width: int) -> None:
    window.resize(width, 860)
    for name, page in PAGES.items():
        window.open(url + page)
        window.wait_for("document.querySelector('h1')")
        assert window.run("return document.documentElement.scrollWidth") <= width, name


def test_numbers_of_runs_are_those_of_the_python_api(
    window: Browser, url: str, recorded: Path
) -> None:
    with mr.open(str(recorded / "mill")) as ws:
        shuffle = ws.open_shuffle(4)
        sizes = {str(size.partition): size.rows for size in shuffle.sizes}
        runs = ws.runs()
    window.open(f"{url}/runs")

    listed = window.table("Runs")

    assert [number(row["run"]) for row in listed] == [run.query_id for run in reversed(runs)]
    (row,) = [row for row in listed if row["run"] == "4"]
    assert number(row["rows"]) == shuffle.rows
    window.open(f"{url}/runs/4/stages/0")
    largest = window.table("Largest partitions")
    assert {row["partition"]: number(row["rows"]) for row in largest}.items() <= sizes.items()
    assert number(largest[0]["rows"]) == max(sizes.values())


def test_a_run_says_what_was_reused_and_why_not_more(window: Browser, url: str) -> None:
    window.open(f"{url}/runs/2")
    assert {row["reuse"].split("\n")[0] for row in window.table("Stages")} == {
        "all 4 reused",
        "all 1 reused",
    }

    window.open(f"{url}/runs/3")
    first = window.table("Stages")[0]

    assert first["reuse"].splitlines() == ["4 of 5 reused", "1 x not done before"]


def test_the_keys_of_the_skewed_partition_are_found(window: Browser, url: str) -> None:
    window.open(f"{url}/runs/3/stages/0")
    window.click("main a[href*='/keys/']")
    window.wait_for("document.querySelector('h1').innerText.startsWith('Keys of')")

    heaviest = window.table("Keys")[0]

    assert (heaviest["cust_id"], heaviest["rows"] > "2,") == ("3", True)


def test_numbers_of_the_job_are_those_of_its_status(
    window: Browser, url: str, recorded: Path
) -> None:
    with mr.open(str(recorded / "mill")) as ws:
        status = ws.job("reviews").status()
    window.open(f"{url}/jobs/reviews")

    rows = {row["step"]: row for row in window.table("Steps")}

    for step in status.steps:
        row = rows[step.name]
        told = [number(row[head]) for head in ("rows in", "rows out", "backlog", "errors")]
        assert told == [step.rows_in, step.rows_out, step.backlog, step.errors]
        assert row["calls"] == ("" if step.calls is None else f"{step.calls:,}")
        assert row["dollars"] == ("$0.0721" if step.name == "review" else "")
    errors = {row["error"]: number(row["rows"]) for row in window.table("Errors")}
    assert errors == {"ValueError": 6, "TimeoutError": 3}


def test_a_step_says_what_its_calls_took_and_raised(window: Browser, url: str) -> None:
    window.open(f"{url}/jobs/reviews/steps/review")

    raised = {row["error"]: number(row["calls"]) for row in window.table("Errors of calls")}
    ended = window.table("Calls that ended")

    assert raised == {"ValueError": 12, "TimeoutError": 6}, "each is tried twice"
    assert {row["model"] for row in ended} <= {"stand-in-1", ""}
    assert "Latency of the last 249 calls" in window.text()


def test_a_journal_shows_rows_by_offset_time_and_value(window: Browser, url: str) -> None:
    window.open(f"{url}/journals?below=shop")
    window.click("main table a")
    window.wait_for("document.querySelector('h1').innerText == 'shop/north'")
    lags = {row["group"]: number(row["behind"]) for row in window.table("Groups")}
    assert (lags["billing"], lags["search"]) == (1_800, 0)

    window.open(f"{url}/journal/shop/north?from=100&column=amount&value=1234")
    assert window.table("Rows") == [{"offset": "1,234", "cust_id": "1234", "amount": "1234"}]

    window.open(f"{url}/journal/shop/north?since=2020-01-01")
    assert window.table("Rows")[0]["offset"] == "0"


def test_a_read_shows_its_checkpoint_and_how_far_it_is(window: Browser, url: str) -> None:
    window.open(f"{url}/reads/totals")

    rows = {row["journal"]: row for row in window.table("Journals")}

    assert rows["shop/north"]["read to"] == rows["shop/north"]["ends at"] == "3,000"
    assert window.table("Checkpoints")[0]["state"] == "committed"


def test_the_workspace_shows_its_disk_and_the_keyboard_reaches_all(
    window: Browser, url: str, recorded: Path
) -> None:
    window.open(f"{url}/workspace")
    window.wait_for("document.querySelector('[aria-label=\"Disk by kind and age\"]')")
    with mr.open(str(recorded / "mill")) as ws:
        counts = ws.system.sql("SELECT kind, count(*) AS n FROM files GROUP BY kind").to_pylist()

    shown = {row["kind"]: number(row["files"]) for row in window.table("Disk by kind and age")}

    assert shown == {row["kind"]: row["n"] for row in counts}
    unreachable = "[...document.querySelectorAll('a, button, .scroll')].filter(e => e.tabIndex < 0)"
    assert window.run(f"return {unreachable}.length") == 0


def test_pictures_of_the_pages(window: Browser, url: str, tmp_path: Path) -> None:
    given = os.environ.get("MILLRACE_PICTURES")
    folder = ROOT / given if given else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    window.resize(1120, 760)
    for name, page in PAGES.items():
        window.open(url + page)
        window.wait_for(
            "document.querySelector('h1') && !document.querySelector('[hx-trigger=load]')"
        )
        window.picture(folder / f"{name}.png", whole=True)
    window.colours("dark")
    window.open(url + PAGES["job"])
    window.picture(folder / "job-dark.png", whole=True)
    window.colours("light")
    window.resize(390, 760)
    window.open(url + PAGES["job"])
    window.picture(folder / "job-390.png", whole=False)
    assert len(list(folder.glob("*.png"))) >= len(PAGES) + 2
