"""Kafka is killed under work of each kind: the call ends, and says so.

The table of all that can be killed under all kinds of work is in tests/cluster/test_gone.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.gone_app import SCHEMA, rows_of
from tests.cluster.gone_kit import HANG_S, Application, check_says_so
from tests.kafka.kafka_kit import PATIENT, started
from tests.kafka.test_kills_on_kafka import SOON_BACK

import millrace as mr

pytestmark = pytest.mark.slow
COMMAND = [sys.executable, "-c", "from millrace.cli.main import main; main()"]


class KilledKafka:
    """A cluster of this test alone, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running = started(folder, settings=SOON_BACK)
        self.url, self.address = self.running.url, self.running.address

    def kill(self) -> None:
        self.running.process.kill()

    def restart(self) -> None:
        port = int(self.address.rpartition(":")[2])
        self.running = started(self.folder, port, SOON_BACK)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KilledKafka]:
    found = KilledKafka(tmp_path / "kafka")
    yield found
    found.kill()


@pytest.mark.parametrize(
    ("work", "kind"), [("job", "KafkaUnreachable"), ("reads", "ReadsCutOff"), ("stream", "")]
)
def test_a_killed_kafka_ends_the_call_and_the_next_run_goes_on(
    tmp_path: Path, cluster: KilledKafka, work: str, kind: str
) -> None:
    options = {"broker": cluster.url, "spark": "none" if work == "reads" else "classic"}
    app = Application(work, tmp_path / "app", options)
    found = app.lose(cluster.kill)
    if kind:
        check_says_so(found, kind, f"Kafka at {cluster.address} did not do its part")
    else:  # Spark wraps what its source raised.
        text = found["text"]
        assert f"Kafka at {cluster.address} did not do its part" in text, text
    cluster.restart()
    app.go_on()


def test_a_command_says_that_kafka_is_gone(tmp_path: Path, cluster: KilledKafka) -> None:
    mill = tmp_path / "mill"
    with mr.open(mill, config=PATIENT, broker=cluster.url) as ws:
        ws.journals.create("t/a", SCHEMA)
        ws.journals.append("t/a", rows_of(range(2)))
        owner = [*COMMAND, "serve", str(mill), "--broker", cluster.url]
    with subprocess.Popen(owner, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline()
        try:
            cluster.kill()
            command = [*COMMAND, "journal", "read", str(mill), "t/a"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=HANG_S, check=False
            )
        finally:
            serving.kill()
    assert done.returncode == 1, done.stdout
    assert f"Kafka at {cluster.address} did not do its part" in done.stderr
    assert "to fix:" in done.stderr
