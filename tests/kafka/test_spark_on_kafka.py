"""Spark over journals on Kafka: workers of a job, and the source, use Kafka themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.kafka_server import KafkaServer

pytestmark = pytest.mark.slow
ROWS = 300
CONFIG = mr.Config().with_options(journal_inline_bytes_max=1, kafka_inline_bytes_max=1)
"""All rows are written by the process that has them."""


def padded(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "pad": "x" * 1000}


def test_a_job_on_spark_reads_and_writes_kafka_and_spark_reads_its_rows(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []
    plain, settle = KafkaBroker.read_many, KafkaBroker.settle
    served: list[object] = []

    def note_settled(self: KafkaBroker, writer: str, number: int, **named: Any) -> None:  # noqa: ANN401
        settled.append(writer)
        settle(self, writer, number, **named)

    def note_served(self: KafkaBroker, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        served.append(args)
        return plain(self, *args, **named)

    monkeypatch.setattr(KafkaBroker, "settle", note_settled)
    monkeypatch.setattr(KafkaBroker, "read_many", note_served)
    with mr.open(tmp_path / "mill", broker=kafka.url, config=CONFIG) as ws:
        job = ws.job("padded")
        source = job.source("numbers", ws.spark.range(ROWS), partitions=2)
        made = source.map("pad", padded, schema="id bigint, pad string", version="1")
        made.sink_journal("done", name="out")
        assert job.run().state == "finished"
        ids = ws.journals.read("done", 0).rows()["id"].to_pylist()
        assert sorted(ids) == list(range(ROWS))
        assert settled, "no worker wrote Kafka itself"

        served.clear()
        reader = ws.spark.read.format("millrace").option("path", ws.path)
        frame = reader.option("journal", "done").load()
        assert sorted(row["id"] for row in frame.collect()) == list(range(ROWS))
        assert served == []
