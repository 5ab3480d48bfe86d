"""Spark reads the folder of a sink while a job writes to it: whole files of committed ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.unit.pipeline.sinks.sinks_kit import (
    Place,
    column,
    make_input,
    parquet_hop,
    publish,
    unfinished,
)

from millrace.journal.memory import MemoryBroker
from millrace.pipeline.sinks import check_sink, open_sink

pytestmark = pytest.mark.spark


def test_spark_sees_committed_files_alone(spark: SparkSession, tmp_path: Path) -> None:
    broker = MemoryBroker()
    make_input(broker, 2, 10)
    hop = parquet_hop(tmp_path / "out")
    check_sink(hop, broker)
    writer = open_sink(hop, broker, Place(str(tmp_path)))
    publish(broker, hop, writer, "in/0", (5, None))
    publish(broker, hop, writer, "in/1", (3, [7]))
    writer.prepare(broker.get("in/0").id, [column([666])], 5, 6)

    found = spark.read.parquet(str(tmp_path / "out"))

    assert len(unfinished(tmp_path / "out")) == 1
    assert found.columns == ["x"]
    assert sorted(row.x for row in found.collect()) == [0, 1, 2, 3, 4, 7]
    broker.close()
