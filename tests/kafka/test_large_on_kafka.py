"""Large values of a job whose journals lie on Kafka: rows refer to files, which hold the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.kafka.kafka_kit import KafkaPlace
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    QUICK,
    Bench,
    fill,
    hop,
    map_step,
    output,
    totals,
)

from millrace.pipeline.core import hops
from millrace.pipeline.core.job_model import Map, ParquetSink
from millrace.pipeline.large.large_cleanup import LargeRemoved, remove_unneeded
from millrace.pipeline.large.large_values import Large, stored_schema
from millrace.pipeline.sinks import check_sink

IMAGES = pa.schema([("x", pa.int64()), ("image", pa.binary()), ("text", pa.string())])
STORED = stored_schema(IMAGES, ["image", "text"])
SIZES = pa.schema([("x", pa.int64()), ("n", pa.int64())])
SIZE = 2_000_000
"""More than Kafka takes in a message, as it comes."""


def draw(row: dict[str, Any]) -> dict[str, Any]:
    x = row["x"]
    return {"x": x, "image": bytes([x]) * SIZE, "text": "schön" * x}


def measure(row: dict[str, Any]) -> dict[str, Any]:
    image = row["image"]
    assert isinstance(image, Large)
    assert image.read() == bytes([row["x"]]) * SIZE
    return {"x": row["x"], "n": image.size}


def test_values_larger_than_a_message_pass_from_step_to_step_and_into_files(
    place: KafkaPlace, tmp_path: Path
) -> None:
    broker = place.open()
    fill(broker, range(1, 9), partitions=2)
    step = map_step("draw", draw, schema=STORED, large=("image", "text"), expensive=True)
    drawing = Map(
        name="draw", schema=STORED, calling=step.calling, options=step.options, returned=IMAGES
    )
    drawn = [hops.output_prefix(JOB, "draw")]
    measuring = map_step("measure", measure, schema=SIZES, expensive=True)
    sink = ParquetSink(name="out", schema=STORED, path=str(tmp_path / "out"))
    steps = [
        hop(drawing, feeds=("measure", "out")),
        hop(measuring, inputs=drawn, schema=STORED, depth=2),
        hop(inputs=drawn, schema=STORED, sink=sink, depth=2),
    ]

    check_sink(steps[2], broker)

    Bench(tmp_path, steps, broker=broker).run()

    assert sorted(output(broker, "measure")) == list(range(1, 9))
    assert set(output(broker, "measure", "n")) == {SIZE}
    assert (totals(broker, "draw").calls, totals(broker, "measure").calls) == (8, 8)
    files = sorted((tmp_path / "out").glob("*.parquet"))
    rows = pa.concat_tables([pq.read_table(file) for file in files]).sort_by("x").to_pylist()
    assert rows == [draw({"x": x}) for x in range(1, 9)]

    again = place.open()
    config = QUICK.with_options(unfinished_grace=0.001)
    assert remove_unneeded(again, str(tmp_path), JOB, config=config) == LargeRemoved(0, 0)
    for info in again.list(drawn[0]):
        again.truncate_committed(info.name)
    assert remove_unneeded(again, str(tmp_path), JOB, config=config).files == 16
