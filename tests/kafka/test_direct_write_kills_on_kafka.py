"""Writers of Kafka, and owners, that are killed at any step, or sleep and wake up late."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kafka.direct_topics_kit import DIRECT, OUTLASTING, child_owns, joined
from tests.kafka.direct_writers_kit import (
    STEPS,
    child_appends,
    child_appends_many,
    child_publishes_twice,
    committed_values,
    is_committed,
)
from tests.kafka.kafka_kit import PATIENT
from tests.kafka.owners_kit import in_child, start
from tests.unit.journal.journal_kit import read_all
from tests.unit.transport.direct_kit import sees, transaction
from tests.unit.transport.owner_kit import SCHEMA, all_values, column

from millrace.errors import MillraceError
from millrace.faults import VARIABLE
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.fault_injection import armed
from millrace.testing.kafka_server import KafkaServer

pytestmark = pytest.mark.slow
KILLED = -9
SOON = PATIENT.with_options(kafka_grant_ms_max=1500)
"""An owner that does not wait long for a writer."""
MIDDLE = STEPS[2:]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("point", STEPS)
def test_a_writer_killed_at_any_step_leaves_all_of_it_or_nothing(
    kafka: KafkaServer, tmp_path: Path, point: str
) -> None:
    with joined(kafka.url, tmp_path / "mill", DIRECT, SOON) as here:
        here.client.create_many(["a", "b", "in"], SCHEMA)
        here.client.append("in", column(*range(5)))
        if point not in MIDDLE:
            here.client.publish(transaction(1, sequence=1, expected=None))
        assert in_child(child_publishes_twice, str(tmp_path / "mill"), point) == KILLED
        # The next process asks again: it waits until the owner knows what became of the first try.
        done = here.client.publish(transaction(2, 3, sequence=2, expected=1))
        assert done.repeated == is_committed(point)
        for name in ("a", "b"):
            assert all_values(here.client, name) == [1, 2, 3]
            assert committed_values(kafka.address, here.broker, name) == [1, 2, 3]
        assert here.client.committed("g", "in") == 2


@pytest.mark.parametrize("point", MIDDLE)
def test_a_writer_that_wakes_up_after_it_was_fenced_writes_nothing_twice(
    kafka: KafkaServer, tmp_path: Path, point: str
) -> None:
    told = tmp_path / "told"
    with joined(kafka.url, tmp_path / "mill", DIRECT, SOON) as here:
        here.client.create("a", SCHEMA)
        writer = start(child_appends, str(tmp_path / "mill"), str(told), point, "sleep=1", 10)
        until(told.exists)
        time.sleep(0.5)
        os.kill(writer.pid, signal.SIGSTOP)
        # It waits for the owner to fence the writer.
        here.client.append("a", column(20))
        os.kill(writer.pid, signal.SIGCONT)
        writer.join(120)
        assert told.read_text().startswith("appended"), told.read_text()
        values = all_values(here.client, "a")
        assert values == committed_values(kafka.address, here.broker, "a")
        assert sorted(values) == [10, 11, 20]
        offset = int(told.read_text().split()[1])
        assert values[offset] == 11


@pytest.mark.parametrize("point", MIDDLE)
def test_an_owner_that_takes_over_ends_the_transactions_of_writers(
    kafka: KafkaServer, tmp_path: Path, point: str
) -> None:
    url, told = f"{kafka.url}/over-{os.getpid()}-{STEPS.index(point)}", tmp_path / "told"
    with joined(url, tmp_path / "mill", DIRECT, PATIENT) as here:
        here.client.create("a", SCHEMA)
        writer = start(child_appends, str(tmp_path / "mill"), str(told), point, "sleep=4", 10)
        until(told.exists)
        time.sleep(1)
        new = KafkaBroker.open(url, str(tmp_path / "new"), PATIENT)
        expected = [10, 11] if is_committed(point) else [10]
        assert read_all(new, "a") == expected
        new.append("a", column(30))
        # The old owner does not know yet that it is one, and neither does the writer.
        writer.join(120)
        assert told.read_text().startswith("appended") == is_committed(point)
        with pytest.raises(MillraceError):
            here.client.append("a", column(40))
        assert read_all(new, "a") == committed_values(kafka.address, new, "a") == [*expected, 30]
        new.close()


@pytest.mark.parametrize("point", ["owner.call.before", "owner.call.after"])
def test_a_writer_goes_on_with_the_next_owner_when_one_is_killed(
    kafka: KafkaServer, tmp_path: Path, point: str
) -> None:
    mill, faults = tmp_path / "mill", tmp_path / "faults"
    mill.mkdir()
    faults.write_text("")
    owner = start(child_owns, kafka.url, str(mill), str(faults))
    until((mill / "owner.json").exists)
    own = OUTLASTING.with_options(journal_inline_bytes_max=1, kafka_inline_bytes_max=1)
    client = sees(mill, own)
    client.create("a", SCHEMA)
    producer = client.producer_id("w")
    for number in range(20):
        given = {"producer": producer, "sequence": number}
        writing = threading.Thread(target=client.append, args=("a", column(number)), kwargs=given)
        if number in (7, 8, 9):  # In the call that grants it, or in the one that settles it.
            faults.write_text(armed(point)[VARIABLE])
            writing.start()
            owner.join(120)
            assert owner.exitcode == KILLED
            faults.write_text("")
            owner = start(child_owns, kafka.url, str(mill), str(faults))
        else:
            writing.start()
        writing.join(120)
        assert not writing.is_alive()
    assert all_values(client, "a") == list(range(20))
    client.close()
    owner.kill()


def test_many_processes_append_to_one_journal(kafka: KafkaServer, tmp_path: Path) -> None:
    with joined(kafka.url, tmp_path / "mill", DIRECT) as here:
        here.client.create("a", SCHEMA)
        folder = str(tmp_path / "mill")
        writers = [start(child_appends_many, folder, 100 * n, 40) for n in range(4)]
        for writer in writers:
            writer.join(120)
            assert writer.exitcode == 0
        values = all_values(here.client, "a")
        assert values == committed_values(kafka.address, here.broker, "a")
        assert values[::2] == values[1::2]
        for first in range(0, 400, 100):
            mine = [value for value in values[::2] if first <= value < first + 100]
            assert mine == list(range(first, first + 40))
