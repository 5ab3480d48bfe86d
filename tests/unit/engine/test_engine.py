"""An error of an input comes out of a query as it went in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.engine.duckdb_engine import Engine
from millrace.engine.task_inputs import TaskInput
from millrace.errors import DataLost, TaskFailed

SCHEMA = pa.schema([("k", pa.int64())])


def cut_off() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"k": pa.array(range(100_000))})
    raise DataLost("part-3.ipc is gone")


@pytest.mark.parametrize("sql", ["SELECT * FROM input_0", "SELECT k FROM input_0 GROUP BY 1"])
def test_an_input_that_is_lost_half_way_is_lost_and_not_short(tmp_path: Path, sql: str) -> None:
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path), time_zone="UTC")
    stream = pa.RecordBatchReader.from_batches(SCHEMA, cut_off())

    with pytest.raises(DataLost, match=r"part-3\.ipc is gone"):
        list(engine.run(sql, {"input_0": TaskInput(lambda: stream)}, SCHEMA))


def test_a_query_that_fails_says_which(tmp_path: Path) -> None:
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path), time_zone="UTC")

    with pytest.raises(TaskFailed, match="a value cannot be calculated with: no\n"):
        list(engine.run("SELECT error('no') AS k", {}, SCHEMA))


def test_joins_of_streams_run_in_the_order_they_are_written_in(tmp_path: Path) -> None:
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path), time_zone="UTC")
    setting = pa.schema([("setting", pa.string())])
    asked = "SELECT current_setting('disabled_optimizers') AS setting"
    stream = TaskInput(lambda: pa.RecordBatchReader.from_batches(SCHEMA, iter([])))

    (streamed,) = engine.run(asked, {"input_0": stream}, setting)
    (alone,) = engine.run(asked, {}, setting)

    assert streamed["setting"].to_pylist() == [
        "join_order,late_materialization,partial_aggregate_pushdown"
    ]
    assert alone["setting"].to_pylist() == ["late_materialization"]
