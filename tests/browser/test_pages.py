"""Pages in a real browser, on a workspace without Spark: no error, no request to elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.browser_kit import ENTER, TAB, Browser, beyond
from tests.browser.conftest import served

from millrace.page.page_app import PageSource
from millrace.page.page_server import PageServer
from millrace.system.resting_workspace import RestingWorkspace

PAGES = [
    "/",
    "/runs",
    "/jobs",
    "/jobs/captions",
    "/jobs/captions/steps/caption",
    "/jobs/captions/retry",
    "/journals",
    "/journal/jobs/captions/videos/out/0",
    "/reads",
    "/workspace",
    "/ask?q=SELECT+step,+calls+FROM+steps",
]


@pytest.fixture
def url(played: Path) -> Iterator[str]:
    server = served(played)
    yield server.place.url.rstrip("/")
    server.close()


def test_each_page_opens_without_an_error_or_a_request_beyond_this_machine(
    window: Browser, url: str
) -> None:
    for page in PAGES:
        window.open(url + page)
        window.wait_for("document.querySelector('h1')")
        assert window.complaints() == [], page
        assert beyond(window.asked()) == [], page


def test_counts_of_the_job_are_those_of_its_status_and_lead_to_its_steps(
    window: Browser, url: str
) -> None:
    window.open(f"{url}/jobs")
    window.click("main table a")
    window.wait_for("location.pathname == '/jobs/captions'")

    rows = {row["step"]: row for row in window.table("Steps")}

    assert (rows["caption"]["rows in"], rows["caption"]["calls"]) == ("8", "10")
    assert rows["out"]["backlog"] == "8"
    assert "run it again to go on where it stopped" in window.text()
    window.click("main table a[href='/jobs/captions/steps/caption']")
    window.wait_for("document.querySelector('h1').innerText == 'caption'")
    assert [row["error"] for row in window.table("Dead letters")] == ["[/e]"]


def test_a_name_with_marks_of_html_is_shown_as_it_is(window: Browser, url: str) -> None:
    window.open(f"{url}/ask?q=SELECT+'<b+onclick=x>%26lt;'+AS+mark")

    assert window.table("Answer") == [{"mark": "<b onclick=x>&lt;"}]
    assert window.complaints() == []


def test_a_page_is_walked_through_with_the_keyboard(window: Browser, url: str) -> None:
    window.open(f"{url}/jobs")
    window.press(TAB)
    assert window.run("return document.activeElement.className") == "skip"
    window.press(ENTER)
    assert window.run("return location.hash") == "#live"
    while window.run("return document.activeElement.tagName") != "A":
        window.press(TAB)
    window.press(ENTER)
    window.wait_for("location.pathname == '/jobs/captions' && document.querySelector('h1')")

    reachable = "[...document.querySelectorAll('a, button, input, summary, [tabindex]')]"
    window.run("document.activeElement.blur()")
    for _ in range(window.run(f"return {reachable}.length")):
        window.press(TAB)
        window.run(
            "const at = document.activeElement; at.dataset.reached = "
            "getComputedStyle(at).outlineStyle == 'none' ? 'hidden' : 'seen'"
        )

    left = f"{reachable}.filter(e => e.dataset.reached != 'seen').map(e => e.outerHTML)"
    assert window.run(f"return {left}") == []


def test_dead_letters_are_retried_with_two_clicks(window: Browser, played: Path) -> None:
    asked: list[tuple[str, str | None, str | None]] = []

    def retry(job: str, step: str | None, kind: str | None) -> dict[str, int]:
        asked.append((job, step, kind))
        return {"caption": 1}

    source = PageSource(RestingWorkspace.at(str(played)), retry=retry)
    server = PageServer(source, token="s3cret")  # noqa: S106 - of a test
    server.start()
    window.open(server.place.url)
    window.open(f"http://127.0.0.1:{server.place.port}/jobs/captions")
    window.click("main a[href*='/retry?']")
    window.wait_for("document.querySelector('form[method=post]')")
    assert [row["rows"] for row in window.table("Dead letters to retry")] == ["1"]
    assert asked == []

    window.click("form[method=post] button")
    window.wait_for("location.search == '?retried=1'")

    assert asked == [("captions", "caption", None)], "its error names no class"
    assert "1 row goes back with the next run" in window.text()
    assert window.complaints() == []
    assert beyond(window.asked()) == []
    server.close()
