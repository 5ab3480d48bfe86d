"""Owners of journals on Kafka in processes of their own, which are killed meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

from tests.kafka.kafka_kit import PATIENT
from tests.unit.journal.journal_kit import SCHEMA, column, publish

import millrace as mr
from millrace.faults import VARIABLE
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.testing.fault_injection import armed

WORKERS = 2
_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.kafka.owners_kit"])


def in_child(function: Callable[..., None], *args: object) -> int:
    """Run a function of this module in a process of its own; its exit code."""
    child = _FORK.Process(target=function, args=args)
    child.start()
    child.join(120)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def start(function: Callable[..., None], *args: object) -> Any:  # noqa: ANN401 - a process
    child = _FORK.Process(target=function, args=args)
    child.start()
    return child


def child_works(url: str, folder: str, told: str) -> None:
    """Workers that publish to two journals and move their input's offset on, and tell how far."""
    broker = KafkaBroker.open(url, folder, PATIENT)
    out = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number in range(WORKERS):
        for name in ("in", "x", "y"):
            broker.create(f"{name}/{number}", SCHEMA)
        if not broker.end_offset(f"in/{number}"):
            broker.append(f"in/{number}", column(range(2000)))

    def work(number: int) -> None:
        source = f"in/{number}"
        at: int | None = broker.committed("g", source)
        while True:
            value = at or 0
            rows = {f"{name}/{number}": column(outputs(value)) for name in ("x", "y")}
            publish(broker, rows, ("g", source, value + 1, at))
            at = value + 1
            os.write(out, f"{number} {value}\n".encode())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()


def outputs(value: int) -> list[int]:
    """What a worker makes of an input row."""
    return [value] * (1 + value % 7)


def child_publishes(url: str, folder: str, point: str) -> None:
    """Publish one transaction to the end, and die in the next."""
    broker = KafkaBroker.open(url, folder, PATIENT)
    for name in ("in", "a", "b"):
        broker.create(name, SCHEMA)
    broker.append("in", column(range(10)))
    producer = broker.producer_id("w")
    publish(broker, {"a": column([1]), "b": column([1])}, ("g", "in", 3, None))
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    with broker.transaction(producer=producer, sequence=1) as t:
        t.append("a", column([2]))
        t.append("b", column([2]))
        t.commit("g", "in", 7, expected=3)


def child_creates(url: str, folder: str, point: str) -> None:
    """Die while a second journal is made."""
    broker = KafkaBroker.open(url, folder, PATIENT)
    broker.create("first", SCHEMA)
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    broker.create("short", SCHEMA)


def child_joins(path: str, url: str) -> None:
    """Work on journals that another process owns."""
    ws = mr.open(path, create=True, broker=url)
    ws.journals.append("a", column([2]))
    ws.journals.commit("g", "a", 2, expected=None)
    assert type(ws.journals).__name__ != "KafkaBroker"
    ws.close()
