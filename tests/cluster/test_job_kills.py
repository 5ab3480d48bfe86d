"""Jobs whose driver, workers or ingestion are killed: nothing lost, nothing out twice, and what may
have been paid for twice is counted. The judge is the paid API, which knows what it was asked.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.cluster.job_kit import Application, interrupt, paid_api, served
from tests.laws import some

from millrace.testing.fault_injection import armed

pytestmark = pytest.mark.spark
ROWS = 80
BATCH = 4
WORKERS = 2


@pytest.mark.slow
def test_a_driver_killed_in_the_middle_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    with paid_api() as api:
        app = Application(tmp_path, api, ROWS)
        app.kill_after(30)
        before = api.counts().total()

        report = app.finish(spread=5)

        app.check(report, in_doubt_max=BATCH * WORKERS)
        (step, _) = report["steps"]
        assert step["reused"] >= before - BATCH * WORKERS
        assert [run["state"] for run in report["runs"]] == ["killed", "finished"]


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_in_doubt_and_the_next_run_goes_on(tmp_path: Path) -> None:
    with paid_api() as api:
        app = Application(tmp_path, api, ROWS)
        process = app.start()
        api.wait_for(20, process)

        interrupt(process)

        _, error = process.communicate(timeout=240)
        assert process.returncode not in (0, -signal.SIGKILL)
        assert "KeyboardInterrupt" in error
        assert "run it again to go on where it stopped" in error
        assert "stopping job paid" in error
        assert api.counts().total() < ROWS
        report = app.finish()
        app.check(report, in_doubt_max=0)
        assert [run["state"] for run in report["runs"]] == ["interrupted", "finished"]


@pytest.mark.slow
def test_sigterm_is_as_good_as_ctrl_c(tmp_path: Path) -> None:
    with paid_api() as api:
        app = Application(tmp_path, api, ROWS)
        process = app.start()
        api.wait_for(20, process)

        process.terminate()

        process.communicate(timeout=240)
        assert process.returncode == 128 + signal.SIGTERM
        app.check(app.finish(), in_doubt_max=0)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_the_next_run_goes_on(tmp_path: Path) -> None:
    with paid_api(delay_s=3) as api:
        app = Application(tmp_path, api, 12)
        process = app.start()
        api.wait_for(1, process)

        interrupt(process)
        process.stderr.readline()  # type: ignore[union-attr]
        interrupt(process)

        process.communicate(timeout=60)
        assert process.returncode != 0
        app.check(app.finish(), in_doubt_max=BATCH * WORKERS)


@pytest.mark.slow
def test_journals_that_are_lost_end_the_run_with_a_clear_error_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    with paid_api() as api:
        app = Application(tmp_path, api, ROWS)
        with served(app.mill) as owner:
            process = app.start(joined=True)
            api.wait_for(20, process)
            owner.kill()

            _, error = process.communicate(timeout=240)

        assert process.returncode == 1
        assert "OwnerUnreachable: job 'paid' was cut off on the way" in error
        assert "it goes on where it stopped" in error
        assert api.counts().total() < ROWS
        with served(app.mill):
            report = app.finish(joined=True)
        app.check(report, in_doubt_max=BATCH * WORKERS)


@pytest.mark.slow
def test_a_driver_that_can_takes_the_journals_over_from_a_killed_owner(tmp_path: Path) -> None:
    with paid_api() as api:
        app = Application(tmp_path, api, ROWS)
        with served(app.mill) as owner:
            process = app.start()
            api.wait_for(20, process)
            owner.kill()

            app.check(app.finish(process), in_doubt_max=BATCH * WORKERS)


POINTS = [
    "job.run.after_started",
    "job.ingest.after_tasks",
    "job.ingest.before_adopt",
    "job.ingest.after_adopt",
    "job.run.after_sources",
    "job.run.before_release",
    "job.run.before_ended",
    "job.run.after_ended",
]


@pytest.mark.slow
@pytest.mark.parametrize("point", some(POINTS))
def test_a_driver_killed_at_any_point_of_a_run_leaves_one_that_goes_on(
    tmp_path: Path, point: str
) -> None:
    with paid_api(delay_s=0) as api:
        app = Application(tmp_path, api, 24)
        process = app.start(env=armed(point))
        process.communicate(timeout=240)
        assert process.returncode == -signal.SIGKILL
        asked = api.counts().total()

        report = app.finish(spread=3)

        app.check(report, in_doubt_max=0)
        assert api.counts().total() == 24
        if point.startswith("job.ingest"):
            assert asked == 0, "nothing is begun before all is taken in"


@pytest.mark.slow
@pytest.mark.parametrize("point", ["job.ingest.after_store", "job.worker.start"])
def test_a_task_killed_once_is_tried_again(tmp_path: Path, point: str) -> None:
    with paid_api(delay_s=0) as api:
        app = Application(tmp_path, api, 24)

        report = app.finish(app.start(env=armed(point, once=tmp_path / "once")))

        assert os.path.exists(tmp_path / "once")
        app.check(report, in_doubt_max=0)
