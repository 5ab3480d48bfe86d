"""A judge of producers' raw rows that knows nothing of how they came to lie, and ways to die."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.unit.journal.journal_kit import SCHEMA, column

from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import Flag
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.testing.fault_injection import armed

NAMES = ("a", "b", "c")
NAME = "shop"


@dataclass(slots=True)
class Judged:
    """What the raw rows of one producer say, by journal."""

    committed: dict[str, list[int]] = field(default_factory=dict)
    open: dict[str, list[int]] = field(default_factory=dict)
    acks: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    """ACKs that committed something: by clock, by journal, whom they name."""


def judge(broker: Broker, names: Iterable[str] = NAMES) -> Judged:
    """Go along the rows as the table of the design says; a row that breaks it is an error here."""
    found = Judged()
    ids = {name: broker.get(name).id for name in names}
    for name in names:
        committed: list[int] = []
        pending: list[int] = []
        last = highest = 0
        for row in _rows(broker, name):
            clock, flag = row["_mr_clock"], row["_mr_flag"]
            if flag == Flag.ACK:
                if pending and clock > last:
                    assert clock >= highest, f"{name}: an ACK at {clock} of rows up to {highest}"
                    committed += pending
                    found.acks.setdefault(clock, {})[name] = row["_mr_hints"]
                pending, last = [], max(last, clock)
                continue
            assert clock > max(last, highest), f"{name}: clock {clock} after {last} and {highest}"
            highest = clock
            if flag == Flag.CONTINUE:
                pending.append(row["x"])
            else:
                assert not pending, f"{name}: a row of its own within a transaction"
                committed.append(row["x"])
                last = clock
        found.committed[name], found.open[name] = committed, pending
    for clock, acks in found.acks.items():
        for name, hints in acks.items():
            others = sorted(ids[other] for other in acks if other != name)
            assert hints == others, f"{name}: the ACK at {clock} names {hints}, not {others}"
    return found


def _rows(broker: Broker, name: str) -> list[dict[str, Any]]:
    at = broker.start_offset(name)
    rows: list[dict[str, Any]] = []
    while True:
        found = broker.read(name, at, isolation="raw")
        if found.next_offset == at:
            return rows
        rows += found.stored().to_pylist()
        at = found.next_offset


# Processes that die.


def make_shop(folder: str) -> None:
    """Journals with one transaction in each, closed in order."""
    broker = EmbeddedBroker.open(folder)
    for name in NAMES:
        broker.create(name, SCHEMA)
    with broker.producer(NAME) as producer:
        for name in NAMES:
            producer.append(name, column([1]))
        producer.commit()
    broker.close()


def child_does(folder: str, operation: str, point: str, stage: int | None) -> None:
    """One transaction over all journals, ended in a way, with a fault armed."""
    broker = EmbeddedBroker.open(folder)
    if operation == "open":
        os.environ[VARIABLE] = armed(point, stage=stage)[VARIABLE]
    producer = broker.producer(NAME)
    os.environ[VARIABLE] = armed(point, stage=stage)[VARIABLE]
    for name in NAMES:
        producer.append(name, column([2, 2]))
    if operation in ("commit", "prepared and rolled back", "left prepared"):
        producer.prepare()
    if operation == "commit":
        producer.commit()
    elif "rolled back" in operation:
        producer.rollback()
    os._exit(0)


def child_leaves(folder: str, *, prepared: bool) -> None:
    """Die with a transaction open, prepared or not."""
    broker = EmbeddedBroker.open(folder)
    producer = broker.producer(NAME)
    for name in NAMES:
        producer.append(name, column([2, 2]))
    if prepared:
        producer.prepare()
    os._exit(0)
