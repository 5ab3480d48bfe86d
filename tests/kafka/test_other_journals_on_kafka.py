"""A job whose journals are embedded, and whose last step appends to a journal on Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kafka.kafka_kit import KafkaPlace
from tests.unit.pipeline.sinks.other_journals_kit import (
    PROGRESS,
    ROWS,
    TARGET,
    bench,
    judge,
)
from tests.unit.pipeline.worker.worker_kit import NUMBERS, fill

from millrace.config import Config
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.sinks.other_journals import OtherJournals, OtherJournalWriter

pytestmark = pytest.mark.slow


def test_rows_go_to_kafka_once_though_a_worker_died_between_the_two(
    place: KafkaPlace, tmp_path: Path
) -> None:
    home, kafka = EmbeddedBroker.open(str(tmp_path / "mill")), place.open()
    fill(home, range(ROWS))
    kafka.create(TARGET, NUMBERS)
    (source,) = home.list("jobs/j/src")
    dying = OtherJournalWriter(TARGET, OtherJournals(kafka, PROGRESS), Config())
    assert dying.recover(source.name, source.id) is None
    rows = home.read(source.name, 0, rows_max=3).rows()
    negative = [-value for value in rows["x"].to_pylist()]
    dying.prepare(source.id, rows.set_column(0, "x", [negative]).to_batches(), 0, 3)

    bench(tmp_path, home, kafka).run()

    judge(home, kafka)
    home.close()


def test_the_next_owner_of_the_journals_on_kafka_knows_the_progress(
    place: KafkaPlace, tmp_path: Path
) -> None:
    home, first = EmbeddedBroker.open(str(tmp_path / "mill")), place.open()
    fill(home, range(ROWS))
    first.create(TARGET, NUMBERS)
    bench(tmp_path, home, first).run()
    (source,) = home.list("jobs/j/src")

    second = place.open()
    late = OtherJournalWriter(TARGET, OtherJournals(second, PROGRESS), Config())
    assert late.recover(source.name, source.id) == ROWS
    judge(home, second)
    home.close()
