"""A value that cannot be cast is named with its column, its row and its file; SQL is for DEBUG."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.engine.memory_kit import OneTask, rows

from millrace.engine.duckdb_engine import Engine
from millrace.engine.query_writer import query
from millrace.engine.task_inputs import TaskInput
from millrace.errors import TaskFailed
from millrace.plan.nodes.map_batches import FunctionRows
from millrace.plan.nodes.project import Project
from millrace.scan.source import Listing, SplitReader, open_source
from millrace.scan.splits import FileSplit, MapInput
from millrace.scan.value_location import where_is
from millrace.sql.expressions import parse_named

SCHEMA = pa.schema({"amount": pa.string()})


def run(tmp_path: Path, expression: str, *values: list[str]) -> str:
    """The message of a cast over files with these values."""
    for number, some in enumerate(values):
        pq.write_table(pa.table({"amount": some}), tmp_path / f"orders-{number}.parquet")
    source = open_source(str(tmp_path), Listing(now_ms=0, recent_ms=0))
    inputs = [
        MapInput((FileSplit(file=shape.file, row_groups=None, bytes=1),)) for shape in source.shapes
    ]
    reader = SplitReader(format=source.format, whole=source.schema, options={})
    batches = [batch for one in inputs for batch in reader.batches(one, 1 << 20)]
    plan = Project(FunctionRows(SCHEMA), tuple(parse_named(expression, SCHEMA, call="select")))
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path / "s"), time_zone="UTC")
    rows = TaskInput(
        lambda: pa.RecordBatchReader.from_batches(SCHEMA, batches),
        find=partial(where_is, reader, inputs, batch_bytes=1 << 20),
    )
    with pytest.raises(TaskFailed) as error:
        list(engine.run(query(plan), {"input_0": rows}, plan.schema))
    return str(error.value)


def test_a_cast_that_fails_names_value_column_row_and_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        said = run(tmp_path, "cast(amount as int) AS n", ["1", "2"], ["3", "it's 4"])

    what, found, fix = said.splitlines()
    assert what == "a value cannot be calculated with: cannot cast 'it's 4' of amount to int"
    assert found == f"  found: in row 2 of {tmp_path}/orders-1.parquet"
    assert fix.startswith("  to fix: correct the value")
    assert "regexp_full_match" in caplog.text


def test_a_value_that_was_changed_before_is_named_with_the_files_it_comes_from(
    tmp_path: Path,
) -> None:
    said = run(tmp_path, "cast(trim(amount) as date) AS n", [" x "])
    assert "cannot cast 'x' of trim(amount) to date" in said
    assert f"found: in {tmp_path}/orders-0.parquet" in said


@pytest.mark.parametrize(
    ("expression", "value"),
    [("cast(amount as tinyint) AS n", "1000"), ("cast(amount as bigint) * 99 AS n", "9" * 18)],
)
def test_a_number_that_is_too_large_is_named_without_sql(
    tmp_path: Path, expression: str, value: str
) -> None:
    said = run(tmp_path, expression, [value])
    assert value in said
    assert "CAST(" not in said
    assert "LINE 1" not in said
    assert "\n  to fix: " in said


def test_a_timestamp_without_a_local_time_is_named_as_such() -> None:
    last = pa.array([2**63 - 2], pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows_there = rows(pa.table({"at": last}), OneTask(zone="Asia/Kolkata"))
    assert rows_there.select("year(at) AS y").toArrow()["y"].to_pylist() == [294247]
    with pytest.raises(TaskFailed, match=r"too near the first or the last(.|\n)*ws.from_spark"):
        rows_there.select("date_trunc('hour', at) AS h").toArrow()
