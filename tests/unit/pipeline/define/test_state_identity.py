"""What of a step with state counts when a job is compared with its earlier runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import Frame, Written

from millrace.errors import JobChanged
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.define.job import Job, graph_of
from millrace.pipeline.define.job_changes import compare, decide
from millrace.pipeline.define.steps import Step

ROWS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("v", pa.int64())])
MORE = pa.schema([("id", pa.int64()), ("bt", pa.timestamp("us")), ("w", pa.int64())])


def function(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    return rows, states


def stateful(state: str) -> Callable[[Step, Step], Step]:
    return lambda a, _: a.stateful("out", function, state=state, schema=ROWS, version="1")


def windows(**options: Any) -> Callable[[Step, Step], Step]:  # noqa: ANN401 - of any option
    return lambda a, _: a.window("out", tumbling="1 minute", n="count(*)", **options)


def joined(**options: str) -> Callable[[Step, Step], Step]:
    return lambda a, b: a.join("out", b, within="1 minute", **options)


def recorded(define: Callable[[Step, Step], Step]) -> JobRecord:
    job = Job("job", Written())
    sources = [job.source(n, Frame(s)).key_by("id") for n, s in (("a", ROWS), ("b", MORE))]
    define(*sources)
    sources[1].aggregate("read", n="count(*)")
    return graph_of(job).record()


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (stateful("n bigint"), stateful("n bigint, m bigint"), "state"),
        (joined(), joined(late="0s"), "late"),
        (joined(late="0s"), joined(late="1s"), "late"),
        (joined(late="0s"), joined(late="0s", idle="1s"), "idle"),
        (windows(), windows(late="0s"), "late"),
        (windows(late="0s"), windows(late="0s", idle="1s"), "idle"),
    ],
)
def test_what_decides_the_state_cannot_change_unseen(
    before: Callable[[Step, Step], Step], after: Callable[[Step, Step], Step], word: str
) -> None:
    assert not compare([recorded(before)], recorded(before))

    changes = compare([recorded(before)], recorded(after))

    with pytest.raises(JobChanged, match=f"step 'out' changed: its {word}"):
        decide(changes, "fail", rows={"out": 1})
    with pytest.raises(JobChanged, match="cannot be: out"):
        decide(changes, "continue", rows={"out": 1})
