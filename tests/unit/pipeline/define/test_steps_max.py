"""A job has as many steps as its limit says, and no step more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import a_source

from millrace.config import Config
from millrace.errors import UserError
from millrace.pipeline.core.hop_rows import HopRows
from millrace.pipeline.core.job_model import FilterStep
from millrace.pipeline.define.explain_job import explain
from millrace.pipeline.worker.fused_query import FusedQuery

STEPS = Config().job_steps_max


def test_a_job_of_the_most_steps_is_described_and_one_more_is_refused_by_name() -> None:
    step = a_source()
    for number in range(STEPS - 2):
        step = step.filter(f"id > {number}", name=f"s{number}")
    step.sink_journal("out")

    graph = step._graph
    assert len(graph.nodes) == STEPS
    assert "s297" in explain(graph.record())
    assert graph.record().job == graph.job
    with pytest.raises(UserError, match=f"step {STEPS + 1}; job_steps_max is {STEPS}"):
        step.filter("id > 0")


def test_the_most_filters_in_a_row_run_as_one_query(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64()})
    condition = "id > 1 AND id < 9"
    steps = [
        FilterStep(name=f"s{number}", schema=schema, condition=condition) for number in range(STEPS)
    ]
    query = FusedQuery(steps, schema, config=Config(), time_zone="UTC", scratch=str(tmp_path))
    rows = HopRows(pa.RecordBatch.from_pydict({"id": [1, 2, 3]}), np.arange(3))
    assert len(query.run(rows)) == 2
    query.close()
