"""Workers of a sink that die, sleep and wake up late, at random: rows come out once."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.unit.pipeline.sinks.sinks_kit import (
    Place,
    column,
    committed,
    make_input,
    parquet_hop,
    seen,
    unfinished,
)

from millrace.config import Config
from millrace.errors import Conflict, LeaseLost
from millrace.journal.core.values import Lease
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.hops import unit_lease
from millrace.pipeline.sinks import Prepared, SinkWriter, check_sink, open_sink

UNITS = 3
ROWS = 1_000
GRACE = Config(unfinished_grace=3600)


@dataclass(slots=True)
class Worker:
    """One that has, or had, the lease of a unit."""

    journal: str
    lease: Lease
    writer: SinkWriter
    at: int | None
    """What it believes to be committed."""
    waiting: list[tuple[Prepared, int | None, int]] = field(default_factory=list)
    published: list[Prepared] = field(default_factory=list)


class Story:
    """A sink and all workers that were ever begun on it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a seed replays it
        self.broker = MemoryBroker()
        self.journals = make_input(self.broker, UNITS, ROWS)
        self.out = folder
        self.hop = parquet_hop(folder)
        check_sink(self.hop, self.broker)
        self.holders: dict[str, Worker] = {}
        self.zombies: list[Worker] = []
        self.refused = self.published = 0

    def some(self) -> Worker:
        """Anybody, also one whose lease was taken long ago."""
        name = self.chance.choice(self.journals)
        if name not in self.holders or self.chance.random() < 0.1:
            return self.take(name)
        if self.zombies and self.chance.random() < 0.3:
            return self.chance.choice(self.zombies)
        return self.holders[name]

    def take(self, name: str) -> Worker:
        """A new worker takes a unit; the last one's files are old by now, or are not."""
        if name in self.holders:
            self.zombies.append(self.holders.pop(name))
        id_ = self.broker.get(name).id
        if self.chance.random() < 0.5:
            self.make_old(f"part-{id_:05}-")
        lease_name = unit_lease(self.hop.job, self.hop.name, id_)
        lease = self.broker.acquire(lease_name, f"worker {self.broker.fence(lease_name)}")
        writer = open_sink(self.hop, self.broker, Place("/nowhere", GRACE))
        at = self.broker.committed(self.hop.group, name)
        worker = self.holders[name] = Worker(name, lease, writer, at)
        writer.recover(name, id_)
        return worker

    def prepare(self) -> None:
        worker = self.some()
        first = worker.at or 0
        next_ = first + self.chance.randint(1, 5)
        values = self.broker.read(worker.journal, first).rows()["x"].to_pylist()[: next_ - first]
        if self.holders.get(worker.journal) is not worker:
            values = [-1]  # A zombie: nobody may ever see this.
        id_ = self.broker.get(worker.journal).id
        prepared = worker.writer.prepare(id_, [column(values)], first, next_)
        worker.waiting.append((prepared, worker.at, next_))

    def publish(self) -> None:
        ready = [each for each in (*self.holders.values(), *self.zombies) if each.waiting]
        if not ready:
            return
        worker = self.chance.choice(ready)
        prepared, before, next_ = worker.waiting.pop()
        try:
            with self.broker.transaction(worker.lease) as t:
                prepared.add_to(t)
                t.commit(self.hop.group, worker.journal, next_, expected=before)
        except LeaseLost:
            assert self.holders.get(worker.journal) is not worker
            self.refused += 1
        except Conflict:
            assert before != self.broker.committed(self.hop.group, worker.journal)
        else:
            worker.at = next_
            self.published += 1
        # Whatever it was told: the record decides about what is shown.
        worker.published.append(prepared)

    def finish(self) -> None:
        worker = self.some()
        for prepared in worker.published:
            prepared.finish()
        worker.published.clear()

    def abandon(self) -> None:
        worker = self.some()
        for prepared, _, _ in worker.waiting:
            prepared.abandon()
        for prepared in worker.published:
            prepared.abandon()  # Which does nothing any more.
        worker.waiting.clear()

    def recover(self) -> None:
        worker = self.some()
        worker.writer.recover(worker.journal, self.broker.get(worker.journal).id)

    def make_old(self, prefix: str) -> None:
        for name in unfinished(self.out):
            if name.startswith(prefix):
                os.utime(self.out / ".millrace" / name, (1, 1))

    def check(self) -> None:
        shown = seen(self.out)
        done = committed(self.broker, self.hop, self.journals)
        assert len(shown) == len(set(shown))
        assert set(shown) <= set(done)

    def end(self) -> None:
        """New workers take everything: then all that was committed is there, and only that."""
        for name in self.journals:
            self.take(name)
        for zombie in self.zombies:
            for prepared in zombie.published:
                prepared.finish()
        assert seen(self.out) == committed(self.broker, self.hop, self.journals)


def run(folder: Path, seed: int) -> Story:
    story = Story(folder / f"seed-{seed}", seed)
    weights = {
        story.prepare: 8,
        story.publish: 6,
        story.finish: 2,
        story.abandon: 1,
        story.recover: 2,
    }
    for action in story.chance.choices(list(weights), list(weights.values()), k=100):
        action()
        story.check()
    story.end()
    story.broker.close()
    return story


def test_rows_come_out_once_whoever_dies_or_wakes_up_late(tmp_path: Path) -> None:
    stories = [run(tmp_path, seed) for seed in range(8)]

    assert min(story.published for story in stories) > 0
    assert sum(story.refused for story in stories) > 8, "no zombie woke up"


@pytest.mark.slow
def test_rows_come_out_once_over_many_seeds(tmp_path: Path) -> None:
    for seed in range(100, 160):
        run(tmp_path, seed)
