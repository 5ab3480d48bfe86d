"""Jobs over journals that go on growing: they take what comes, until somebody stops them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.job_kit import CONFIG, TEXTS, calls, caption, ids

import millrace as mr

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("url", pa.string())])
WAIT_S = 120


@pytest.fixture
def ws(spark: SparkSession, tmp_path: Path) -> Iterator[mr.Workspace]:
    config = CONFIG.with_options(job_sink_wait=0.2)
    with mr.open(tmp_path / "mill", spark, config=config) as opened:
        yield opened


class Growing:
    """A job that runs for ever over journals below `acme/`, and what it leaves behind."""

    def __init__(self, ws: mr.Workspace, folder: Path) -> None:
        self.ws, self.log, self.out = ws, folder / "log", folder / "out"

    def add(self, journal: str, *numbers: int) -> None:
        rows = pa.table({"id": numbers, "url": [f"u{n}" for n in numbers]}, SCHEMA)
        self.ws.journals.append(journal, rows)

    def job(self) -> mr.Job:
        job = self.ws.job("growing")
        made = job.source("videos", journals="acme/").map(
            "call", caption(self.log), schema=TEXTS, expensive=True, batch_rows=2
        )
        made.sink_parquet(self.out)
        return job

    def run_until(self, story: Callable[[], None], number: signal.Signals) -> None:
        """Run while the story is told beside it; then this process gets the signal."""
        running, errors = threading.Event(), list[BaseException]()

        def beside() -> None:
            try:
                story()
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)
            if running.is_set():
                os.kill(os.getpid(), number)

        running.set()
        thread = threading.Thread(target=beside)
        thread.start()
        try:
            self.job().run(until="forever")
        finally:
            running.clear()
            thread.join(WAIT_S)
            if errors:
                raise errors[0]

    def wait_for(self, *numbers: int) -> None:
        """Wait until these rows, and no others, have come out."""
        until = time.monotonic() + WAIT_S
        while ids(self.out) != list(numbers):
            assert time.monotonic() < until, f"so far: {ids(self.out)}"
            time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_rows_that_come_while_it_runs_are_done_and_a_signal_ends_it_in_order(
    ws: mr.Workspace, tmp_path: Path, number: signal.Signals
) -> None:
    growing = Growing(ws, tmp_path)
    ws.journals.create("acme/a", SCHEMA)
    growing.add("acme/a", *range(10))

    def story() -> None:
        growing.wait_for(*range(10))
        growing.add("acme/a", *range(10, 15))
        growing.wait_for(*range(15))
        ws.journals.create("acme/b", SCHEMA)
        growing.add("acme/b", *range(15, 20))
        growing.wait_for(*range(20))

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        growing.run_until(story, number)

    status = growing.job().status()
    assert (status.state, status.holder) == ("interrupted", None)
    growing.add("acme/b", *range(20, 24))
    report = growing.job().run()

    assert ids(growing.out) == list(range(24))
    assert calls(growing.log) == dict.fromkeys(range(24), 1)
    step = report.step("call")
    assert (step.calls, step.reused, step.in_doubt) == (24, 20, 0)
    assert [run.state for run in report.runs] == ["interrupted", "finished"]
