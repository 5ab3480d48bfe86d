"""Kafka to run tests on, and brokers on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.unit.journal.journal_kit import Hands

from millrace.config import Config
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.kafka_server import KafkaServer, fetch_jars, start_kafka

BUILD = Path(__file__).parents[2] / "build"
# The first compiler alone: a short run never earns the second one's work back.
QUICK_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Waits that no busy machine exceeds; nothing here is judged by how long it takes.
PATIENT = Config().with_options(gone_after=60, kafka_timeout=60, kafka_start_ms_max=300_000)


def started(
    folder: Path, port: int | None = None, settings: Mapping[str, str] | None = None
) -> KafkaServer:
    libs = fetch_jars(str(BUILD), PATIENT)
    return start_kafka(
        libs, str(folder), config=PATIENT, port=port, settings=settings, jvm=QUICK_JVM
    )


def children(pid: int) -> list[int]:
    """The processes below one, its guard and Kafka's Java among them."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, rest = path.read_text().partition(" ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.rpartition(")")[2].split()[1]) == pid:
            found += [int(number), *children(int(number))]
    return found


@dataclass(slots=True)
class KafkaPlace:
    """Where a broker is opened, again and again: `Place` of the contract, on Kafka."""

    url: str
    folder: Path
    config: Config = PATIENT
    hands: Hands = field(default_factory=Hands)
    opened: list[KafkaBroker] = field(default_factory=list)

    def open(self) -> KafkaBroker:
        self.close()
        broker = KafkaBroker.open(self.url, str(self.folder), self.config, times=self.hands.times())
        self.opened.append(broker)
        return broker

    def close(self) -> None:
        for broker in self.opened:
            broker.close()
        self.opened.clear()
