"""Workspaces that pages are shown of, servers of their pages, and a browser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.browser_kit import Browser, browser
from tests.unit.pipeline.played_kit import Played

import millrace as mr
from millrace.page.page_app import PageSource
from millrace.page.page_server import PageServer
from millrace.pipeline.paid.call_records import Totals
from millrace.system.resting_workspace import RestingWorkspace
from millrace.workspace import runtime_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def window(chromium: Browser) -> Browser:
    """The browser, with nothing left of other tests."""
    chromium.open("about:blank")
    chromium.resize(1280, 860)
    chromium.colours("light")
    chromium.complaints()
    chromium.asked()
    return chromium


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a workspace in which queries, a job, journals and a read have run."""
    folder = tmp_path_factory.mktemp("recorded")
    subprocess.run(
        [sys.executable, "-m", "tests.browser.recorded", str(folder)],
        cwd=ROOT,
        check=True,
        timeout=600,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    return folder


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Path]:
    """A workspace with a job that was played by hand, and whose owner is this process."""
    with mr.open(tmp_path / "mill") as ws:
        job = Played.started(runtime_of(ws).joined_broker())
        for partition in range(2):
            job.do("caption", "videos", partition, 4)
            job.record_calls(partition, Totals(calls=5, in_doubt=1))
            job.do("by_user", "caption", partition, 4)
        job.dead_letter("caption")
        yield tmp_path / "mill"


def served(workspace: Path) -> PageServer:
    """A server of the pages of a workspace, which has started."""
    server = PageServer(PageSource(RestingWorkspace.at(str(workspace))))
    server.start()
    return server
