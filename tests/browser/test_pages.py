"""Pages in a real browser, on a workspace without Spark: no error, no request to elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.browser_kit import Browser, beyond
from tests.browser.conftest import served

PAGES = [
    "/",
    "/runs",
    "/jobs",
    "/jobs/captions",
    "/jobs/captions/steps/caption",
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
