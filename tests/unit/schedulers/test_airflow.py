"""What the operator makes of the ends of jobs; `tests/schedulers` has a real Airflow."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

import pytest
from tests.unit.schedulers.stand_ins import (
    CONNECTIONS,
    AirflowException,
    AirflowFailException,
    Ends,
    imported_beside_stand_ins,
    report,
)
from tests.unit.schedulers.test_airflow_connections import Connection

from millrace.errors import LeaseHeld, StepFailed, UserError
from millrace.pipeline.report.job_report import State


class Task:
    """The context's task instance: what it was given for XCom."""

    def __init__(self) -> None:
        self.left: dict[str, Any] = {}

    def xcom_push(self, *, key: str, value: object) -> None:
        self.left[key] = value


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported_beside_stand_ins(monkeypatch, "millrace.schedulers.airflow")


def execute(module: ModuleType, **given: object) -> tuple[Any, Task]:
    task = Task()
    operator = module.MillraceJobOperator(
        task_id="paid", workspace="/mill", job="reviews:build", **given
    )
    return operator.execute({"ti": task}), task


def failed(module: ModuleType, kind: type[Exception], **given: object) -> tuple[str, Task]:
    task = Task()
    operator = module.MillraceJobOperator(
        task_id="paid", workspace="/mill", job="reviews:build", **given
    )
    with pytest.raises(kind) as error:
        operator.execute({"ti": task})
    assert type(error.value) is kind
    return str(error.value), task


def test_a_finished_job_returns_its_counts_and_how_to_see_it(
    module: ModuleType,
    ends: Ends,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran = ends(report("finished"))

    with caplog.at_level(logging.INFO):
        found, task = execute(module, arguments={"day": "monday"}, open_options={"ledger": "files"})

    assert (found["state"], found["run"]) == ("finished", 2)
    assert found["steps"]["ask"]["calls"] == 82
    assert found["page"] == "millrace ui export /mill paid"
    assert caplog.messages[0] == "page: millrace ui export /mill paid"
    assert task.left == {}
    assert (ran[0].arguments, ran[0].options) == ({"day": "monday"}, {"ledger": "files"})
    assert "ask: 80 of 80 rows, 82 calls, 0 rows/s" in caplog.messages
    assert "job paid, run 2: finished" in caplog.text


@pytest.mark.parametrize(
    ("state", "error", "kind"),
    [
        ("spent", None, AirflowFailException),
        ("held", StepFailed("calls in doubt"), AirflowFailException),
        ("failed", StepFailed("a step gave up"), AirflowException),
        ("interrupted", SystemExit(143), AirflowException),
    ],
)
def test_a_retry_is_made_unless_it_would_end_alike(
    module: ModuleType,
    ends: Ends,
    state: State,
    error: BaseException | None,
    kind: type[Exception],
) -> None:
    ends(report(state), error)

    _, task = failed(module, kind)

    assert task.left["report"]["state"] == state


def test_a_failed_job_leaves_a_link_where_pages_are_served(module: ModuleType, ends: Ends) -> None:
    ends(report("failed"), StepFailed("a step gave up"))

    _, task = failed(module, AirflowException, ui_url="https://mill.example.com")

    assert task.left["report"]["page"] == "https://mill.example.com/jobs/paid"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(UserError("wrong"), AirflowFailException), (LeaseHeld("is run already"), AirflowException)],
)
def test_errors_before_a_run_leave_no_report(
    module: ModuleType,
    ends: Ends,
    error: Exception,
    kind: type[Exception],
) -> None:
    ends(None, error)

    text, task = failed(module, kind)

    assert (text, task.left) == (str(error), {})


def test_a_used_up_budget_says_what_to_do(module: ModuleType, ends: Ends) -> None:
    ends(report("spent"))

    text, _ = failed(module, AirflowFailException)

    assert "to fix: give a higher budget" in text


def test_a_task_that_is_killed_before_its_job_begins_runs_none(
    module: ModuleType, ends: Ends
) -> None:
    ends(report("finished"))
    operator = module.MillraceJobOperator(task_id="paid", workspace="/mill", job="reviews:build")

    operator.on_kill()

    with pytest.raises(AirflowException, match="stopped: before the job began"):
        operator.execute({"ti": Task()})


def test_a_connection_becomes_the_spark_of_the_job_and_is_not_shown(
    module: ModuleType,
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = ends(report("finished"))
    lake = Connection("spark_connect", host="lake", password="a-token")  # noqa: S106 - no secret
    monkeypatch.setitem(CONNECTIONS, "lake", lake)

    execute(module, spark_conn_id="lake")

    assert ran[0].spark == {"spark.remote": "sc://lake:15002/;token=a-token"}
    assert "a-token" not in repr(ran[0])


def test_one_spark_is_named_at_most(module: ModuleType) -> None:
    with pytest.raises(AirflowException, match="not both"):
        module.MillraceJobOperator(
            task_id="paid", workspace="/mill", job="a:b", spark="local", spark_conn_id="lake"
        )
