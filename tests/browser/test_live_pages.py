"""Pages of a job that runs, and is killed while they are open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.browser.browser_kit import Browser, beyond
from tests.browser.conftest import ROOT, served

pytestmark = pytest.mark.slow
_CELL = "document.querySelector('[aria-label=Steps] tbody td:nth-child(3)')"
_DONE = f"Number({_CELL}.innerText.replace(',', ''))"
_STATE = "document.querySelector('.title .chip').innerText"


def wait_for_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 240
    while not path.exists():
        assert process.poll() is None, "the job ended before it began"
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_job_that_is_killed_while_the_page_is_open_goes_on_being_shown(
    window: Browser, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.browser.slow_job", str(tmp_path)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        )
    try:
        wait_for_file(tmp_path / "mill" / "journals" / "ledger.sqlite", process)
        server = served(tmp_path / "mill")
        window.open(f"{server.place.url}jobs/slow")
        until = time.monotonic() + 240
        while not window.run("return Boolean(document.querySelector('[aria-label=Steps] tbody'))"):
            assert time.monotonic() < until
            time.sleep(1)
            window.open(f"{server.place.url}jobs/slow")
        window.run("window.loadedOnce = true")
        while not window.run(f"return {_STATE} == 'running' && {_DONE} > 0"):
            assert time.monotonic() < until
            time.sleep(0.3)
        first = window.run(f"return {_DONE}")
        while window.run(f"return {_DONE}") <= first:  # Without a look of ours.
            assert time.monotonic() < until
            time.sleep(0.3)

        given = os.environ.get("MILLRACE_PICTURES")
        picture = (ROOT / given if given else tmp_path) / "job-live.png"
        if given:
            window.wait_for("document.querySelector('[aria-label=\"Time of workers\"]')")
        window.resize(1120, 760)
        window.picture(picture, whole=True)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

        window.wait_for(f"{_STATE} == 'killed'")
        assert window.run("return window.loadedOnce"), "the page was loaded anew"
        assert "run it again to go on where it stopped" in window.text()
        step = window.table("Steps")[0]
        assert step["backlog"] != "0"
        assert "rows wait" in step["now"]
        # Refused while there was no such job yet.
        assert [c for c in window.complaints() if "404" not in c] == []
        assert beyond(window.asked()) == []
        server.close()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
