"""What the resource makes of the ends of jobs; `tests/schedulers` has a real Dagster."""

from __future__ import annotations

import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.unit.schedulers.stand_ins import (
    DagsterExecutionInterruptedError,
    Ends,
    Failure,
    imported_beside_stand_ins,
    report,
)

from millrace.errors import LeaseHeld, StepFailed, UserError
from millrace.pipeline.report.job_report import JobReport

CONTEXT = SimpleNamespace(log=logging.getLogger("asset"))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported_beside_stand_ins(monkeypatch, "millrace.schedulers.dagster")


def run(module: ModuleType, **fields: object) -> Any:  # noqa: ANN401 - a stand-in
    mill = module.MillraceWorkspace(path="/mill", **fields)
    return mill.run(CONTEXT, "reviews:build", day="monday")


def test_a_finished_job_becomes_metadata(
    module: ModuleType, ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    ran = ends(report("finished"))

    with caplog.at_level(logging.INFO):
        found = run(module, spark="sc://lake", spark_settings={"a": "b"}, ledger="files").metadata

    assert (found["state"], found["run"]) == ("finished", 2)
    assert (found["rows"], found["calls"], found["in_doubt"]) == ({"ask": 80}, 82, 2)
    assert ran[0].arguments == {"day": "monday"}
    assert ran[0].spark == {"a": "b", "spark.remote": "sc://lake"}
    assert ran[0].options == {"broker": "embedded", "ledger": "files"}
    assert "job paid, run 2: finished" in caplog.text
    assert found["page"] == "millrace ui export /mill paid"
    assert caplog.messages[0] == "page: millrace ui export /mill paid"


def test_the_page_is_a_link_where_pages_are_served(module: ModuleType, ends: Ends) -> None:
    ends(report("finished"))

    found = run(module, ui_url="http://mill.example.com:4280/").metadata

    assert found["page"] == ("url", "http://mill.example.com:4280/jobs/paid")


@pytest.mark.parametrize(
    ("ended", "error", "allows"),
    [
        (report("spent"), None, False),
        (report("held"), StepFailed("calls in doubt"), False),
        (report("failed"), StepFailed("a step gave up"), True),
        (None, UserError("wrong"), False),
        (None, LeaseHeld("is run already"), True),
    ],
)
def test_a_retry_is_allowed_unless_it_would_end_alike(
    module: ModuleType,
    ends: Ends,
    ended: JobReport | None,
    error: Exception | None,
    allows: bool,  # noqa: FBT001
) -> None:
    ends(ended, error)

    with pytest.raises(Failure) as failed:
        run(module)

    assert failed.value.allow_retries is allows
    assert failed.value.metadata.get("state") == (ended.state if ended else None)


def test_a_signal_that_ended_the_run_is_said_as_dagster_says_it(
    module: ModuleType, ends: Ends
) -> None:
    ends(report("interrupted"), KeyboardInterrupt())

    with pytest.raises(DagsterExecutionInterruptedError):
        run(module)
