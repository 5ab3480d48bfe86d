"""`millrace broker start --kafka` gives users the Kafka of these tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kafka.kafka_kit import BUILD, PATIENT, children
from tests.unit.journal.journal_kit import SCHEMA, column, read_all
from tests.unit.journal.kafka.test_process import is_gone, wait_for

from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.kafka_server import CACHE_VARIABLE
from millrace.testing.managed_process import answers


@pytest.mark.slow
def test_kafka_is_started_says_its_address_and_ends_without_a_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()"]
    started = subprocess.Popen(
        [*command, "broker", "start", "--kafka", "--folder", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, CACHE_VARIABLE: str(BUILD)},
    )
    assert started.stdout is not None
    url = started.stdout.readline().strip()
    pids = children(started.pid)
    broker = KafkaBroker.open(url, str(tmp_path / "mill"), PATIENT)
    broker.create("a", SCHEMA)
    broker.append("a", column([1]))
    assert read_all(broker, "a") == [1]
    broker.close()

    assert len(pids) >= 2
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=120)
    assert started.returncode == 0, errors
    assert "Traceback" not in errors
    wait_for(lambda: all(map(is_gone, pids)))
    host, _, port = url.removeprefix("kafka://").rpartition(":")
    assert not answers(host, int(port))
    assert (tmp_path / "data" / "data" / "meta.properties").exists()
