"""Real Apache Kafka, one node, for all tests of a run; and every contract test's broker on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kafka.kafka_kit import KafkaPlace, started

from millrace.journal.broker import Broker
from millrace.testing.kafka_server import KafkaServer


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """Fails, and does not skip, where Kafka cannot be had: scripts/test looks before it asks."""
    server = started(tmp_path_factory.mktemp("kafka"))
    yield server
    server.process.stop()


@pytest.fixture
def place(kafka: KafkaServer, tmp_path: Path) -> Iterator[KafkaPlace]:
    made = KafkaPlace(kafka.url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def broker(place: KafkaPlace) -> Broker:
    return place.open()
