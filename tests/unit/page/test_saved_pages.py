"""The saved page of a job: whole by itself, all text escaped, also of a job that was killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.pipeline.played_kit import JOB, Played

import millrace as mr
from millrace.cli.main import cli
from millrace.page.saved_pages import saved_job
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.paid.call_records import Totals
from millrace.system.resting_workspace import RestingWorkspace
from millrace.workspace import runtime_of

WICKED = "<script>alert('\"&')</script>"


class PageTags(HTMLParser):
    """Tags, texts and anything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "hx-get")]
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with mr.open(tmp_path / "mill") as ws:
        job = Played.started(runtime_of(ws).joined_broker())
        job.do("caption", "videos", 0, 4)
        job.record_calls(0, Totals(calls=5, in_doubt=1))
        job.dead_letter("caption")
        yield job


def saved(folder: Path) -> tuple[str, PageTags]:
    with RestingWorkspace.at(str(folder / "mill")) as resting:
        text = saved_job(resting, JOB)
    page = PageTags()
    page.feed(text)
    page.close()
    assert page.open == [], "every tag is closed"
    return text, page


@pytest.mark.usefixtures("played")
def test_a_saved_page_needs_nothing_else(tmp_path: Path) -> None:
    text, page = saved(tmp_path)

    assert page.fetched == ["a href=#live"]
    assert "script" not in page.tags
    assert not re.search(r"url\(|@import|https?://", text)
    assert {"killed", "5 calls, 0 errors", "4"} <= set(page.texts)
    assert "run it again to go on where it stopped" in text


def test_what_a_run_recorded_is_drawn_and_what_users_named_is_escaped(
    tmp_path: Path, played: Played
) -> None:
    samples = [{"at_s": float(t), "rows_in": [max(0, t - 2) * 10]} for t in range(9)]
    step = {"name": WICKED, "rows_in": 60, "calls_now": None, "reused": 0}
    report = {"note": WICKED, "samples": samples, "steps": [step]}
    played.tell(JobEventKind.ENDED, 1, "", state="failed", report=report)

    text, page = saved(tmp_path)

    assert "script" not in page.tags
    assert WICKED in page.texts
    assert page.tags.count("polyline") == 1
    assert "start, 3.0 s" in page.texts
    assert "failed" in page.texts
    assert json.dumps(WICKED) not in text


@pytest.mark.usefixtures("played")
def test_the_command_writes_it_and_says_where(tmp_path: Path) -> None:
    to = tmp_path / "page.html"

    done = CliRunner().invoke(
        cli, ["ui", "export", str(tmp_path / "mill"), JOB, "--to", str(to)], catch_exceptions=False
    )

    assert done.output.strip() == str(to)
    assert JOB in to.read_text(encoding="utf-8")
    with pytest.raises(mr.UserError, match="no job 'nobody'"):
        CliRunner().invoke(
            cli, ["ui", "export", str(tmp_path / "mill"), "nobody"], catch_exceptions=False
        )
