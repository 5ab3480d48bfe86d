"""What operators of a task did comes from the engine's profiler, and only if it is asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from millrace.engine.duckdb_engine import Engine
from millrace.engine.operator_profile import (
    OperatorMeasure,
    decode_measures,
    encode_measures,
    profiled,
)
from millrace.engine.task_inputs import TaskInput
from millrace.execute.explain_query import operator_lines

ROWS = pa.table({"a": list(range(100)), "b": [n % 7 for n in range(100)]})
SQL = "SELECT b, count(*) AS n FROM input_0 WHERE a >= 30 GROUP BY b"
SCHEMA = pa.schema([("b", pa.int64()), ("n", pa.int64())])


def measured(folder: Path) -> list[OperatorMeasure]:
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(folder), time_zone="UTC")
    with profiled() as measures:
        rows = list(engine.run(SQL, {"input_0": TaskInput(ROWS.to_reader)}, SCHEMA))
    assert sum(batch.num_rows for batch in rows) == 7
    list(engine.run(SQL, {"input_0": TaskInput(ROWS.to_reader)}, SCHEMA))  # Not measured.
    return measures


def test_each_operator_has_its_rows_bytes_and_seconds(tmp_path: Path) -> None:
    measures = measured(tmp_path)
    rows = {measure.name: measure.rows for measure in measures}
    assert rows["table scan"] == 100
    assert rows["filter"] == 70
    assert rows["hash group by"] == 7
    assert all(measure.seconds >= 0 and measure.bytes > 0 for measure in measures)
    assert [measure.depth for measure in measures] == sorted(m.depth for m in measures)
    assert decode_measures(encode_measures(measures)) == tuple(measures)


def test_tasks_of_one_tree_are_added_up_and_reused_ones_are_named(tmp_path: Path) -> None:
    one, other = measured(tmp_path), measured(tmp_path)
    lines = operator_lines({0: [one, other], 1: []}, {1: 3})
    assert lines[0][0] == "operators of 2 tasks that ran:"
    assert any("table scan" in line and "200 rows" in line for line in lines[0])
    assert lines[1] == ["operators of 3 tasks: reused, not run"]
    two_trees = operator_lines({0: [one, other[1:]]}, {})
    assert two_trees[0].count("operators of 1 task that ran:") == 2
