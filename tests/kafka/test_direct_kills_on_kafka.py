"""Readers of Kafka while the owner or Kafka itself is killed, or they sleep: each row once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kafka.direct_topics_kit import (
    OUTLASTING,
    child_follows,
    child_owns,
    joined,
)
from tests.kafka.kafka_kit import PATIENT, started
from tests.kafka.owners_kit import start
from tests.kafka.test_kills_on_kafka import KILLED, SOON_BACK, insist
from tests.unit.transport.direct_kit import sees
from tests.unit.transport.owner_kit import QUICK, SCHEMA, column

from millrace.errors import Retriable
from millrace.faults import VARIABLE
from millrace.testing.fault_injection import armed
from millrace.testing.kafka_server import KafkaServer

pytestmark = pytest.mark.slow
ROWS = 600
POINTS = (
    "kafka.publish.after_produce",
    "kafka.publish.before_commit",
    "kafka.publish.after_commit",
)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def values_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("point", POINTS)
def test_a_reader_goes_on_with_the_next_owner_when_one_is_killed_in_a_transaction(
    kafka: KafkaServer, tmp_path: Path, point: str
) -> None:
    mill, faults, out = tmp_path / "mill", tmp_path / "faults", tmp_path / "read"
    mill.mkdir()
    faults.write_text("")
    owner = start(child_owns, kafka.url, str(mill), str(faults))
    until((mill / "owner.json").exists)
    client = sees(mill, OUTLASTING)
    client.create("a", SCHEMA)
    reader = start(child_follows, str(mill), str(out), ROWS)
    producer, acked = client.producer_id("w"), 0
    for number in range(ROWS // 20):
        if number == 10:
            faults.write_text(armed(point)[VARIABLE])
        rows = column(*range(20 * number, 20 * number + 20))
        if number == 10:
            writing = threading.Thread(
                target=client.append, args=("a", rows), kwargs={"producer": producer, "sequence": 1}
            )
            writing.start()
            owner.join(120)
            assert owner.exitcode == KILLED
            faults.write_text("")
            owner = start(child_owns, kafka.url, str(mill), str(faults))
            writing.join(120)
            assert not writing.is_alive()
        else:
            client.append("a", rows)
        acked += 20
    reader.join(120)
    assert reader.exitcode == 0
    assert values_in(out) == list(range(ROWS)) == list(range(acked))
    client.close()
    owner.kill()


def test_a_reader_that_slept_reads_on_from_where_it_was(kafka: KafkaServer, tmp_path: Path) -> None:
    out = tmp_path / "read"
    with joined(kafka.url, tmp_path / "mill") as here:
        here.client.create("a", SCHEMA)
        reader = start(child_follows, str(tmp_path / "mill"), str(out), ROWS)
        here.client.append("a", column(*range(ROWS // 2)))
        until(lambda: len(values_in(out)) >= 50)
        os.kill(reader.pid, signal.SIGSTOP)
        here.client.append("a", column(*range(ROWS // 2, ROWS)))
        os.kill(reader.pid, signal.SIGCONT)
        reader.join(120)
        assert values_in(out) == list(range(ROWS))
        assert here.served == []


def test_kafka_killed_under_readers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    server = started(tmp_path / "kafka", settings=SOON_BACK)
    port = int(server.address.rpartition(":")[2])
    mine = QUICK.with_options(kafka_direct_ms_max=500)
    owners = PATIENT.with_options(kafka_timeout=3)
    with joined(server.url, tmp_path / "mill", mine, owners) as here:
        insist(lambda: here.client.create("a", SCHEMA))
        insist(lambda: here.client.append("a", column(*range(100)), expected=0))
        found = insist(lambda: here.client.read("a", 0, rows_max=30))
        server.process.kill()
        with contextlib.suppress(Retriable):
            # What was fetched ahead is here; the rest is not, and is not taken for empty.
            early = here.client.read("a", int(found.next_offset)).rows()["x"].to_pylist()
            assert early == list(range(30, 30 + len(early)))
            assert early
        server = started(tmp_path / "kafka", port, SOON_BACK)
        rest = insist(lambda: here.client.read("a", int(found.next_offset)))
        served = len(here.served)
        here.client._direct._kafka._not_before = 0.0
        again = insist(lambda: here.client.read("a", int(found.next_offset)))
        assert len(here.served) == served
        for rows in (rest, again):
            values = [*found.rows()["x"].to_pylist(), *rows.rows()["x"].to_pylist()]
            assert values == list(range(100))
    server.process.stop()
