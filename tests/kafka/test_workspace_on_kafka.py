"""A workspace whose journals are in Kafka: opened, shared with those who join, and taken over."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.owners_kit import child_joins, in_child
from tests.unit.journal.journal_kit import SCHEMA, column, read_all

import millrace as mr
from millrace.testing.kafka_server import KafkaServer
from millrace.workspace import runtime_of


def test_a_workspace_keeps_its_journals_in_kafka_and_others_join(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    ws = mr.open(str(tmp_path), broker=kafka.url)
    ws.journals.create("a", SCHEMA, labels={"k": "v"})
    ws.journals.append("a", column([1]))
    assert in_child(child_joins, str(tmp_path), kafka.url) == 0
    assert read_all(runtime_of(ws).joined_broker(), "a") == [1, 2]
    assert ws.journals.committed("g", "a") == 2
    ws.close()

    ws = mr.open(str(tmp_path), broker=kafka.url)
    assert read_all(runtime_of(ws).joined_broker(), "a") == [1, 2]
    with ws.journals.transaction() as t:
        t.append("a", column([3]))
        t.commit("g", "a", 3, expected=2)
    assert read_all(runtime_of(ws).joined_broker(), "a") == [1, 2, 3]
    ws.close()
