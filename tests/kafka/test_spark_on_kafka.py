"""Spark over journals on Kafka: workers of a job, and the source, use Kafka themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.kafka.kafka_sink_kit import new_topic

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


def test_a_job_on_spark_commits_to_a_topic_and_its_next_run_goes_on_there(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = new_topic(kafka.address)
    with mr.open(tmp_path / "mill") as ws:
        ws.journals.create("orders", pa.schema([("id", pa.int64()), ("what", pa.string())]))
        for begin in (0, 3):
            rows = [{"id": begin + number, "what": "tea"} for number in range(3)]
            ws.journals.append("orders", pa.Table.from_pylist(rows))
            job = ws.job("to-kafka")
            orders = job.source("orders", journal="orders")
            orders.sink_kafka(topic.name, "out", bootstrap=kafka.address, key="what")
            assert job.run().state == "finished"
        assert f"topic {topic.name} at {kafka.address}" in job.explain()
    found = [(json.loads(message.value()), message.key()) for message in topic.messages()]
    expected = [({"id": number, "what": "tea"}, b"tea") for number in range(6)]
    assert sorted(found, key=lambda message: message[0]["id"]) == expected
