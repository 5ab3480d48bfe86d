"""Owners of journals on Kafka in processes of their own, which are killed meanwhile."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

from tests.kafka.kafka_kit import QUICK
from tests.unit.journal.journal_kit import SCHEMA, column, publish

import millrace as mr
from millrace.faults import VARIABLE
from millrace.journal.kafka.broker import KafkaBroker
from millrace.testing.faults import armed

_FORK = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["tests.kafka.owners_kit"])


def in_child(function: Callable[..., None], *args: object) -> int:
    """Run a function of this module in a process of its own; its exit code."""
    child = _FORK.Process(target=function, args=args)
    child.start()
    child.join(120)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def child_publishes(url: str, folder: str, point: str) -> None:
    """Publish one transaction to the end, and die in the next."""
    broker = KafkaBroker.open(url, folder, QUICK)
    for name in ("in", "a", "b"):
        broker.create(name, SCHEMA)
    broker.append("in", column(range(10)))
    producer = broker.producer("w")
    publish(broker, {"a": column([1]), "b": column([1])}, ("g", "in", 3, None))
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    with broker.transaction(producer=producer, sequence=1) as t:
        t.append("a", column([2]))
        t.append("b", column([2]))
        t.commit("g", "in", 7, expected=3)


def child_creates(url: str, folder: str, point: str) -> None:
    """Die while a second journal is made."""
    broker = KafkaBroker.open(url, folder, QUICK)
    broker.create("first", SCHEMA)
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    broker.create("short", SCHEMA)


def child_joins(path: str, url: str) -> None:
    """Work on journals that another process owns."""
    ws = mr.open(path, broker=url)
    ws.journals.append("a", column([2]))
    ws.journals.commit("g", "a", 2, expected=None)
    assert type(ws.journals).__name__ != "KafkaBroker"
    ws.close()
