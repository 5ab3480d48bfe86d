"""Traces: spans of a run in threads, in tasks and at the owner; nothing of rows, nothing if off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from tests.unit.metrics.collector_kit import Collector, collector
from tests.unit.transport.owner_kit import SCHEMA, all_values, client_of, column, place_at

import millrace as mr
from millrace.errors import UserError
from millrace.log_lines import log_ids
from millrace.metrics.traces import (
    flush_spans,
    note_span,
    run_span,
    span,
    task_ids,
    trace_header,
    traced_work,
)
from millrace.transport.owner.journal_owner import Owner
from millrace.wakeup import WorkerThread


@pytest.fixture
def there() -> Iterator[Collector]:
    with collector() as found:
        yield found
        mr.send_traces(sample=0)


def test_spans_of_a_run_are_one_trace_over_threads_and_tasks(there: Collector) -> None:
    mr.send_traces(there.url)
    told = []

    def stage() -> None:
        with log_ids(stage=2), span("stage"):
            told.append(traced_work())

    with log_ids(run=7), run_span("query"):
        thread = WorkerThread(stage, "stage")
        thread.start()
        thread.ended.wait(30)
    (work,) = told
    with log_ids(**task_ids(work), run=7, task=3), span("task"):
        note_span("call", 0.25, "ValueError", attempt=2)
    flush_spans(work)

    spans = {each.name: each for each in there.spans()}
    assert spans["query"].parent == ""
    assert spans["stage"].parent == spans["query"].id
    assert spans["task"].parent == spans["stage"].id
    assert spans["call"].parent == spans["task"].id
    assert len({each.trace for each in spans.values()}) == 1
    assert spans["stage"].about == {"millrace.run": 7, "millrace.stage": 2}
    assert spans["call"].about["millrace.attempt"] == 2
    assert spans["call"].error == "ValueError"


def test_the_text_of_an_error_is_not_sent(there: Collector) -> None:
    mr.send_traces(there.url)
    with pytest.raises(ValueError, match="s3cret"), run_span("query"):
        raise ValueError("s3cret row")
    mr.send_traces(sample=0)

    assert [each.error for each in there.spans()] == ["ValueError"]
    assert all(b"s3cret" not in body for _, body in there.bodies)


def test_without_traces_nothing_is_told_to_tasks_or_owners() -> None:
    with run_span("query"), span("stage"):
        note_span("call", 1.0)
        assert traced_work() is None
        assert trace_header() == {}
    assert task_ids(None) == {}


def test_a_run_below_a_span_of_the_user_is_sampled_as_that_is(there: Collector) -> None:
    mr.send_traces(there.url)
    with (
        TracerProvider(sampler=ALWAYS_OFF).get_tracer("theirs").start_as_current_span("theirs"),
        run_span("query"),
    ):
        assert traced_work() is None
    with TracerProvider().get_tracer("theirs").start_as_current_span("theirs") as theirs:
        own = theirs.get_span_context()
        with run_span("query"):
            work = traced_work()
    flush_spans(work)

    (query,) = there.spans()
    assert query.parent == f"{own.span_id:016x}"
    assert query.trace == f"{own.trace_id:032x}"


def test_the_owner_notes_what_it_writes_for_a_traced_run(there: Collector, tmp_path: Path) -> None:
    mr.send_traces(there.url)
    owner = Owner.open(place_at(tmp_path / "mill"))
    client = client_of(owner)
    client.create("north", SCHEMA)
    with log_ids(run=7), run_span("job"):
        client.append("north", column(1, 2))
        assert all_values(client, "north") == [1, 2]
        work = traced_work()
    client.close()
    owner.close()
    flush_spans(work)

    wrote, job = there.spans()
    assert (wrote.name, wrote.parent) == ("owner append", job.id), "reads have no span"


@pytest.mark.parametrize(
    "given",
    [
        {"sample": 1.5},
        {"sample": -0.1},
        {"endpoint": "collector:4318"},
        {"endpoint": "http://me:s3cret@collector:4318"},
    ],
)
def test_what_cannot_be_meant_is_refused_without_its_password(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match="to fix") as refused:
        mr.send_traces(**given)  # type: ignore[arg-type]
    assert "s3cret" not in str(refused.value)
