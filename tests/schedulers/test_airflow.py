"""Jobs as tasks of a real Airflow, with kills between the tries. The judge is the paid API."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.job_kit import paid_api, wait_until
from tests.schedulers.airflow_kit import Airflow
from tests.schedulers.paid_place import IN_DOUBT_MAX, ROWS, PaidPlace

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidPlace]:
    with paid_api() as api:
        yield PaidPlace(tmp_path_factory.mktemp("tasks"), api)


@pytest.fixture(scope="module")
def airflow(place: PaidPlace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    with Airflow(tmp_path_factory.mktemp("airflow"), place.settings) as running:
        yield running


def begin(airflow: Airflow, place: PaidPlace, name: str, asked: int) -> str:
    """Trigger a DAG, and wait until its job has asked so much; the run's id."""
    place.make_ready(name)
    run = airflow.trigger(name)
    place.wait_for(asked)
    return run


def test_the_try_after_a_kill_goes_on_where_the_last_one_stopped(
    airflow: Airflow, place: PaidPlace
) -> None:
    run = begin(airflow, place, "killed", 30)
    before = len(place.api.asked)

    os.kill(place.driver("killed"), signal.SIGKILL)

    task = airflow.wait_for("killed", run, "success", "failed")
    assert (task["state"], task["try_number"]) == ("success", 2)
    place.check("killed")
    report = airflow.xcom("killed", run, "return_value")
    step = report["steps"]["ask"]
    assert (report["state"], step["rows_in"]) == ("finished", ROWS)
    assert step["reused"] >= before - IN_DOUBT_MAX
    assert step["calls_now"] <= ROWS - step["reused"] + IN_DOUBT_MAX
    assert " of 80 rows" in airflow.log("killed", run, 1)
    assert f"page: {report['page']}" in airflow.log("killed", run, 1)
    assert f"page: {report['page']}" in airflow.log("killed", run, 2)
    place.check_page("killed", report["page"])


def test_a_budget_that_is_used_up_fails_the_task_without_its_retries(
    airflow: Airflow, place: PaidPlace
) -> None:
    run = begin(airflow, place, "spent", 10)

    task = airflow.wait_for("spent", run, "success", "failed", "up_for_retry")

    assert (task["state"], task["try_number"]) == ("failed", 1)
    assert len(place.api.asked) == 10
    assert airflow.xcom("spent", run, "report")["state"] == "spent"
    assert "the budget of ask is used up" in airflow.log("spent", run, 1)


def test_a_task_that_a_user_stops_ends_in_order_and_goes_on_when_it_is_cleared(
    airflow: Airflow, place: PaidPlace
) -> None:
    run = begin(airflow, place, "stopped", 20)
    driver = place.driver("stopped")

    airflow.set_state("stopped", run, "failed")

    wait_until(lambda: not Path(f"/proc/{driver}").exists(), "the task's end")
    assert len(place.api.asked) < ROWS
    airflow.clear("stopped", run)
    airflow.wait_for("stopped", run, "success")
    place.check("stopped", again_max=0)
