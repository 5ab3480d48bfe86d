"""Owners killed inside a transaction, Kafka itself killed under load, and owners that woke late."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.kafka.kafka_kit import PATIENT, KafkaPlace, children, started
from tests.kafka.owners_kit import (
    WORKERS,
    child_creates,
    child_publishes,
    child_works,
    in_child,
    outputs,
    start,
)
from tests.unit.journal.journal_kit import SCHEMA, column, read_all

from millrace.errors import BrokerStopped, KafkaUnreachable, MillraceError, Retriable
from millrace.journal.core.values import Published
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.fault_injection import POINTS
from millrace.testing.kafka_server import KafkaServer

T = TypeVar("T")
KILLED = -9
# A node that was killed is let in again once its old session is over.
SOON_BACK = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
OF_PUBLISH = (
    "kafka.publish.after_produce",
    "kafka.publish.before_commit",
    "kafka.publish.after_commit",
)


def test_every_point_on_the_way_to_kafka_is_covered() -> None:
    inside = {point for point in POINTS if point.startswith(("kafka.create", "kafka.publish"))}

    assert inside == {"kafka.create.after_topics", *OF_PUBLISH}


@pytest.mark.parametrize(
    ("point", "is_there"), [(point, point.endswith("after_commit")) for point in OF_PUBLISH]
)
def test_an_owner_killed_in_a_transaction_leaves_all_of_it_or_nothing(
    kafka: KafkaServer, tmp_path: Path, point: str, *, is_there: bool
) -> None:
    assert in_child(child_publishes, kafka.url, str(tmp_path), point) == KILLED

    place = KafkaPlace(kafka.url, tmp_path)
    broker = place.open()
    found = [1, 2] if is_there else [1]
    assert (read_all(broker, "a"), read_all(broker, "b")) == (found, found)
    assert broker.committed("g", "in") == (7 if is_there else 3)
    # Whoever never got the answer asks again, and it is carried out once.
    with broker.transaction(producer=broker.producer_id("w"), sequence=1) as t:
        t.append("a", column([2]))
        t.append("b", column([2]))
        t.commit("g", "in", 7, expected=3)
    assert t.result is not None
    assert t.result.repeated == is_there
    assert (read_all(broker, "a"), read_all(broker, "b")) == ([1, 2], [1, 2])
    assert broker.committed("g", "in") == 7
    place.close()


def test_a_journal_whose_making_was_cut_short_can_be_made_again(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    point = "kafka.create.after_topics"
    assert in_child(child_creates, kafka.url, str(tmp_path), point) == KILLED

    place = KafkaPlace(kafka.url, tmp_path)
    broker = place.open()
    assert [each.name for each in broker.list()] == ["first"]
    broker.create("short", SCHEMA)
    broker.append("short", column([1]))
    assert read_all(broker, "short") == [1]
    place.close()


def test_an_owner_that_was_taken_over_can_write_no_more(kafka: KafkaServer, tmp_path: Path) -> None:
    url = f"{kafka.url}/zombie-{os.getpid()}"
    old = KafkaBroker.open(url, str(tmp_path / "old"), PATIENT)
    old.create("a", SCHEMA)
    old.append("a", column([1]))
    new = KafkaBroker.open(url, str(tmp_path / "new"), PATIENT)
    new.append("a", column([2]))

    for _ in range(2):
        with pytest.raises(BrokerStopped, match="took these journals over"):
            old.append("a", column([99]))
    with pytest.raises(BrokerStopped):
        old.commit("g", "a", 1, expected=None)
    assert new.append("a", column([3])).first_offset == 2
    assert read_all(new, "a") == [1, 2, 3]
    old.close()
    new.append("a", column([4]))
    assert read_all(new, "a") == [1, 2, 3, 4]
    new.close()


def test_an_owner_that_lost_kafka_for_a_while_does_not_take_over_from_its_successor(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    url = f"{kafka.url}/late-{os.getpid()}"
    old = KafkaBroker.open(url, str(tmp_path / "old"), PATIENT)
    old.create("a", SCHEMA)
    # As after a transaction whose answer never came.
    old._cluster.writer.close()
    old._granting.lose()
    old.append("a", column([1]))
    assert read_all(old, "a") == [1]
    old._cluster.writer.close()
    old._granting.lose()
    new = KafkaBroker.open(url, str(tmp_path / "new"), PATIENT)
    assert new.epoch > old.epoch

    with pytest.raises(BrokerStopped, match="took these journals over while Kafka was out of"):
        old.append("a", column([99]))
    assert new.append("a", column([2])).first_offset == 1
    assert read_all(new, "a") == [1, 2]
    old.close()
    new.close()


class Writing:
    """Appends until told to stop, and remembers what it was told."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.acked: list[int] = []
        self.unknown: list[int] = []
        self.kinds: set[type[MillraceError]] = set()
        self.slowest_s = 0.0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        value = 0
        while not self.stopped.is_set():
            begun = time.monotonic()
            try:
                self.broker.append("a", column([value] * 3))
            except MillraceError as error:
                self.kinds.add(type(error))
                self.unknown.append(value)
                time.sleep(0.05)
            else:
                self.acked.append(value)
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            value += 1

    def wait(self, rows: int) -> None:
        deadline = time.monotonic() + 240
        while len(self.acked) < rows:
            assert time.monotonic() < deadline, (len(self.acked), rows, self.kinds)
            time.sleep(0.02)


def test_kafka_killed_under_load_loses_and_doubles_nothing_and_the_owner_goes_on(
    tmp_path: Path,
) -> None:
    config = PATIENT.with_options(kafka_timeout=3, kafka_abort_ms_max=500)
    server = started(tmp_path / "kafka", settings=SOON_BACK)
    port = int(server.address.rpartition(":")[2])
    mill = str(tmp_path / "mill")
    broker = insist(lambda: KafkaBroker.open(server.url, mill, config))
    insist(lambda: broker.create("a", SCHEMA))
    writing = Writing(broker)
    try:
        writing.wait(20)
        server.process.kill()
        before = len(writing.acked)
        deadline = time.monotonic() + 60
        while not writing.kinds:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(Retriable):
            broker.read("a", 0)
        server = started(tmp_path / "kafka", port, SOON_BACK)
        writing.wait(before + 20)
    finally:
        writing.stopped.set()
        writing.thread.join()
    assert writing.kinds == {KafkaUnreachable}

    found = insist(lambda: read_rows(broker))
    for value in writing.acked:
        assert found.count(value) == 3, value
    for value in writing.unknown:
        assert found.count(value) in (0, 3), value
    assert found == sorted(found)
    broker.close()
    again = insist(lambda: KafkaBroker.open(server.url, mill, config))
    assert insist(lambda: read_rows(again)) == found
    again.close()
    server.process.stop()


def insist(ask: Callable[[], T]) -> T:
    """Ask again as long as Kafka is too slow for the short wait of this test."""
    deadline = time.monotonic() + 240
    while True:
        try:
            return ask()
        except Retriable:
            assert time.monotonic() < deadline


def read_rows(broker: KafkaBroker) -> list[int]:
    found: list[int] = []
    at = broker.start_offset("a")
    while (fetched := broker.read("a", at)).num_rows:
        found += fetched.rows()["x"].to_pylist()
        at = fetched.next_offset
    return found


class Doubtful:
    """A producer whose commit never comes back, though it was or was not carried out."""

    def __init__(self, real: Any, *, is_done: bool) -> None:  # noqa: ANN401 - whatever is there
        self.real = real
        self.is_done = is_done

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.real, name)

    def __len__(self) -> int:
        return len(self.real)

    def commit_transaction(self, timeout: float) -> None:
        if self.is_done:
            self.real.commit_transaction(timeout)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.parametrize("is_done", [True, False])
def test_a_transaction_of_unknown_outcome_is_found_out_before_anything_else(
    place: KafkaPlace, *, is_done: bool
) -> None:
    broker = place.open()
    for name in ("in", "out"):
        broker.create(name, SCHEMA)
    broker.append("in", column(range(5)))
    producer = broker.producer_id("w")
    writer = broker._cluster.writer
    writer._producer = Doubtful(writer._producer, is_done=is_done)  # type: ignore[assignment]

    def ask() -> Published:
        with broker.transaction(producer=producer, sequence=1) as t:
            t.append("out", column([7]))
            t.commit("g", "in", 3, expected=None)
        assert t.result is not None
        return t.result

    with pytest.raises(Retriable, match="it may have been carried out"):
        ask()
    assert ask().repeated == is_done
    assert broker.committed("g", "in") == 3
    assert broker.append("out", column([8])).first_offset == 1
    assert read_all(broker, "out") == [7, 8]
    assert read_all(place.open(), "out") == [7, 8]


def test_a_cluster_that_hangs_is_said_and_waited_out(kafka: KafkaServer, tmp_path: Path) -> None:
    config = PATIENT.with_options(kafka_timeout=1, kafka_abort_ms_max=500)
    broker = insist(lambda: KafkaBroker.open(kafka.url, str(tmp_path), config))
    insist(lambda: broker.create("a", SCHEMA))
    producer = insist(lambda: broker.producer_id("w"))

    def append(value: int) -> object:
        return broker.append("a", column([value]), producer=producer, sequence=value)

    insist(lambda: append(1))
    asks: list[Callable[[], object]] = [
        lambda: append(2),
        lambda: broker.create("b", SCHEMA),
        lambda: broker.truncate_before("a", 1),
        lambda: broker.read("a", 0),
        lambda: KafkaBroker.open(kafka.url, str(tmp_path / "other"), config),
    ]
    running = children(kafka.process.pid)
    for pid in running:
        os.kill(pid, signal.SIGSTOP)
    try:
        for ask in asks:
            with pytest.raises(Retriable, match=r"1000 ms \(kafka_timeout\)"):
                ask()
    finally:
        for pid in running:
            os.kill(pid, signal.SIGCONT)
    insist(lambda: append(2))
    assert insist(lambda: read_all(broker, "a")) == [1, 2]
    broker.close()


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_workers_of_owners_killed_at_any_moment_do_each_row_once(
    kafka: KafkaServer, tmp_path: Path, seed: int
) -> None:
    told, mill = tmp_path / "told", tmp_path / "mill"
    chance = random.Random(seed)  # noqa: S311 - to be the same again
    for _ in range(3):
        child = start(child_works, kafka.url, str(mill), str(told))
        goal = lines(told) + chance.randrange(5, 30)
        deadline = time.monotonic() + 240
        while lines(told) < goal:
            assert time.monotonic() < deadline
            assert child.is_alive()
            time.sleep(chance.random() / 50)
        child.kill()
        child.join()
    place = KafkaPlace(kafka.url, mill)
    broker = place.open()

    said = [tuple(map(int, line.split())) for line in told.read_text().splitlines()]
    for number in range(WORKERS):
        at = broker.committed("g", f"in/{number}") or 0
        expected = [row for value in range(at) for row in outputs(value)]
        assert read_all(broker, f"x/{number}") == expected
        assert read_all(broker, f"y/{number}") == expected
        mine = [value for who, value in said if who == number]
        assert mine == sorted(set(mine))
        assert at > max(mine, default=-1)
    place.close()


def lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def test_a_cluster_that_is_not_there_is_said_within_the_time(tmp_path: Path) -> None:
    config = PATIENT.with_options(kafka_timeout=0.5)

    with pytest.raises(Retriable, match=r"500 ms \(kafka_timeout\)"):
        KafkaBroker.open("kafka://127.0.0.1:1", str(tmp_path), config)
    # The folder was let go.
    with pytest.raises(Retriable, match="kafka_timeout"):
        KafkaBroker.open("kafka://127.0.0.1:1", str(tmp_path), config)
