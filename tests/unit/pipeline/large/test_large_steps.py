"""Large values on their way through a job: put away before a publish, read by functions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import Frame, a_job
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    NUMBERS,
    Bench,
    fill,
    filter_step,
    function_sink,
    hop,
    map_step,
    output,
    select_step,
)

from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_model import FilterStep, Map, ParquetSink, Select
from millrace.pipeline.large.large_cleanup import LargeRemoved, remove_unneeded
from millrace.pipeline.large.large_values import BYTES, Large, read_large, stored_schema
from millrace.pipeline.sinks import check_sink

IMAGES = pa.schema([("x", pa.int64()), ("image", pa.binary())])
STORED = stored_schema(IMAGES, ["image"])
SIZES = pa.schema([("x", pa.int64()), ("n", pa.int64())])


def image_of(x: int) -> bytes:
    return b"%d" % x * 100


def draw(row: dict[str, Any]) -> dict[str, Any]:
    return {"x": row["x"], "image": image_of(row["x"])}


def draw_all(batch: pa.RecordBatch) -> pa.RecordBatch:
    drawn = [image_of(x) for x in batch.column("x").to_pylist()]
    return pa.RecordBatch.from_arrays([batch.column("x"), pa.array(drawn)], schema=IMAGES)


async def draw_async(row: dict[str, Any]) -> dict[str, Any]:
    return draw(row)


def measure(row: dict[str, Any]) -> dict[str, Any]:
    image = row["image"]
    assert isinstance(image, Large)
    assert image.read() == image_of(row["x"])
    return {"x": row["x"], "n": image.size}


async def measure_async(row: dict[str, Any]) -> dict[str, Any]:
    return measure(row)


def measure_all(batch: pa.RecordBatch) -> pa.RecordBatch:
    images = read_large(batch, "image").to_pylist()
    assert images == [image_of(x) for x in batch.column("x").to_pylist()]
    sizes = pa.array([len(image) for image in images], pa.int64())
    return pa.RecordBatch.from_arrays([batch.column("x"), sizes], schema=SIZES)


def large_step(function: Any = draw, name: str = "draw", **how: Any) -> Map:  # noqa: ANN401
    step = map_step(name, function, schema=STORED, large=("image",), durable=True, **how)
    return Map(
        name=name,
        schema=STORED,
        calling=step.calling,
        options=step.options,
        returned=IMAGES,
    )


def drawn(step: str = "draw") -> list[str]:
    return [hops.output_prefix(JOB, step)]


@pytest.fixture
def broker() -> Broker:
    made = MemoryBroker()
    fill(made, range(1, 9), partitions=2)
    return made


def values(folder: Path) -> int:
    return sum(path.is_file() for path in folder.joinpath("large").rglob("*"))


@pytest.mark.parametrize("is_expensive", [True, False])
@pytest.mark.parametrize(
    ("draws", "measures", "how"),
    [
        (draw, measure, {}),
        (draw_all, measure_all, {"rows": "batch"}),
        (draw_async, measure_async, {"is_async": True, "concurrency": 3}),
    ],
)
def test_a_function_reads_what_the_one_before_it_gave(
    tmp_path: Path,
    broker: Broker,
    draws: Any,  # noqa: ANN401 - a function
    measures: Any,  # noqa: ANN401 - a function
    how: dict[str, Any],
    *,
    is_expensive: bool,
) -> None:
    first = large_step(draws, expensive=is_expensive, **how)
    second = map_step("measure", measures, schema=SIZES, expensive=is_expensive, **how)
    steps = [hop(first), hop(second, inputs=drawn(), schema=STORED, depth=2)]

    Bench(tmp_path, steps, broker=broker).run()

    assert sorted(output(broker, "measure")) == list(range(1, 9))
    assert output(broker, "measure", "n") == [100] * 8
    references = output(broker, "draw", "image")
    assert [one["size"] for one in references] == [100] * 8
    assert values(tmp_path) == 8


def test_filters_and_columns_see_the_fields_of_a_reference(tmp_path: Path, broker: Broker) -> None:
    fill(broker, [10, 11], name="more")
    kept: list[FilterStep | Select] = [
        filter_step("image.size > 100 AND image.path LIKE 'large/%'", schema=STORED),
        select_step("x", "image.size AS n", schema=SIZES),
    ]
    steps = [
        hop(large_step(), inputs=[hops.output_prefix(JOB, name) for name in ("src", "more")]),
        hop(
            *kept,
            map_step("same", lambda row: row, schema=SIZES, durable=True),
            inputs=drawn(),
            schema=STORED,
            depth=2,
        ),
    ]

    Bench(tmp_path, steps, broker=broker).run()

    assert output(broker, "same", "n") == [200, 200]


@dataclass
class Passed:
    x: int
    image: Any


@pytest.mark.parametrize("is_kept_large", [True, False])
def test_a_value_may_be_passed_on(tmp_path: Path, broker: Broker, *, is_kept_large: bool) -> None:
    def same(row: dict[str, Any]) -> Passed:
        return Passed(row["x"], row["image"])

    second = map_step("pass", same, schema=IMAGES, durable=True)
    if is_kept_large:
        second = large_step(same, "pass")
    steps = [hop(large_step()), hop(second, inputs=drawn(), schema=STORED, depth=2)]

    Bench(tmp_path, steps, broker=broker).run()

    found = output(broker, "pass", "image")
    if is_kept_large:
        assert {one["path"][: len("large/j/pass/")] for one in found} == {"large/j/pass/"}
    else:
        assert sorted(found) == [image_of(x) for x in range(1, 9)]


def test_sinks_get_the_values(tmp_path: Path, broker: Broker) -> None:
    got: list[bytes] = []
    sink = function_sink("tell", lambda row: got.append(row["image"].read()), schema=STORED)
    files = ParquetSink(name="files", schema=STORED, path=str(tmp_path / "out"))
    steps = [
        hop(large_step()),
        hop(inputs=drawn(), schema=STORED, sink=sink, depth=2),
        hop(inputs=drawn(), schema=STORED, sink=files, depth=2),
    ]
    check_sink(steps[2], broker)

    Bench(tmp_path, steps, broker=broker).run()

    wanted = [image_of(x) for x in range(1, 9)]
    assert sorted(got) == wanted
    found = duckdb.execute(f"SELECT image FROM read_parquet('{tmp_path}/out/*')").fetchall()
    assert sorted(row[0] for row in found) == wanted


def test_a_large_value_of_a_step_that_is_not_kept_goes_on(tmp_path: Path, broker: Broker) -> None:
    # Given two steps in one hop: rows between them never lie in a journal.
    second = map_step("measure", measure, schema=SIZES, durable=True)
    steps = [hop(large_step(), second)]

    Bench(tmp_path, steps, broker=broker).run()

    assert output(broker, "measure", "n") == [100] * 8


def test_a_job_is_written_down_with_large_values(tmp_path: Path, broker: Broker) -> None:
    job = a_job(JOB)
    source = job.source("src", Frame(NUMBERS), partitions=2)
    images = source.map("draw", draw, schema="x bigint, image binary", large="image", version="1")
    large_ones = images.filter("image.size >= 100 AND x > 2").select("x", "image", "image.size")
    large_ones.sink_parquet(str(tmp_path / "out"))
    assert images.schema == STORED
    assert large_ones.schema.field("size").type == pa.int64()
    with pytest.raises(UserError, match="image has no field sise"):
        images.filter("image.sise > 1")
    check_sink(job._graph.hops[-1], broker)

    Bench(tmp_path, job._graph.hops, broker=broker).run()

    query = f"SELECT x, image, size FROM read_parquet('{tmp_path}/out/*') ORDER BY x"
    found = duckdb.execute(query).fetchall()
    assert found == [(x, image_of(x), 100) for x in range(3, 9)]


def test_values_go_when_their_rows_are_gone(tmp_path: Path, broker: Broker) -> None:
    second = map_step("measure", measure, schema=SIZES, durable=True)
    steps = [hop(large_step()), hop(second, inputs=drawn(), schema=STORED, depth=2)]
    bench = Bench(tmp_path, steps, broker=broker)
    bench.run()
    config = bench.config.with_options(unfinished_grace=0.001)

    assert remove_unneeded(broker, str(tmp_path), JOB, "draw", config) == LargeRemoved(0, 0)
    for info in broker.list(drawn()[0]):
        broker.truncate_committed(info.name)

    assert remove_unneeded(broker, str(tmp_path), JOB, "draw", config) == LargeRemoved(8, 800)
    assert STORED.field("image").type == BYTES


def test_a_step_that_runs_again_writes_no_file_anew(tmp_path: Path, broker: Broker) -> None:
    Bench(tmp_path, [hop(large_step())], broker=broker).run()
    before = {path: path.stat().st_ino for path in tmp_path.joinpath("large").rglob("*-*")}
    other = MemoryBroker()
    fill(other, range(1, 9))

    Bench(tmp_path, [hop(large_step())], broker=other).run()

    assert {path: path.stat().st_ino for path in tmp_path.joinpath("large").rglob("*-*")} == before
    assert output(other, "draw", "image") != []
