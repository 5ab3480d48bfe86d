"""Histories of processes on journals in Kafka: owners, writers and readers die, or sleep."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.histories.history_driver import run_history
from tests.histories.history_places import kafka_place
from tests.laws import seeds

from millrace.testing.kafka_server import KafkaServer


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(30, first=1))
def test_no_law_is_broken_when_processes_die(tmp_path: Path, kafka: KafkaServer, seed: int) -> None:
    with kafka_place(tmp_path, kafka, "arrow" if seed % 2 else "messages") as place:
        assert run_history(place, tmp_path / "run", seed=seed, harms=4) == []
