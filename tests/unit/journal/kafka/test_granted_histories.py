"""Writers and owners of one cluster in any order: killed, fenced, late, with answers that are lost.

The cluster is in memory. Broker, writers and their protocol are the real ones. While a transaction
is between two steps, its process sleeps, and others do what they like.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.laws import seeds
from tests.unit.journal.kafka.fake_cluster import NAME, FakeKafka, FakeWriter, owner_of

from millrace.config import Config
from millrace.errors import BrokerStopped, Conflict, MillraceError, OwnerUnreachable
from millrace.journal.core.values import Append, KafkaPlace
from millrace.journal.core.write_grants import GrantRequest
from millrace.journal.direct_reads import SpotUnreadable
from millrace.journal.kafka import direct_producers, kafka_cluster
from millrace.journal.kafka.direct_producers import DirectProducers
from millrace.journal.kafka.granting_commit import GrantingGroupCommit
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.journal.kafka.kafka_cluster import Cluster
from millrace.journal.kafka.kafka_messages import HeldRows

SCHEMA = pa.schema([("value", pa.binary())])
JOURNALS = ("a", "b", "c")
CONFIG = Config()
PLACE = KafkaPlace(servers="fake:1", name=NAME, cluster_id="fake")
DEPTH_MAX = 3


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Writer:
    """A process that writes; its owner is the one it last heard of."""

    world: World
    owner: KafkaBroker
    sequence: int = 0
    is_busy: bool = False
    name: str = ""
    producers: DirectProducers = field(init=False)

    def __post_init__(self) -> None:
        self.world.started += 1
        self.name = f"w/{self.world.started}"
        self.producers = DirectProducers(PLACE, CONFIG, Calls(self))


@dataclass
class Calls:
    """Calls to the owner, some of whose answers are lost."""

    writer: Writer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - passed on
            answer = getattr(self.writer.owner, name)(*args, **named)
            if self.writer.world.chance.random() < 0.05:
                raise OwnerUnreachable("the answer is lost\n  to fix: ask again")
            return answer

        return call


@dataclass
class World:
    """All processes, and what was acknowledged to whom."""

    kafka: FakeKafka
    chance: random.Random
    folder: str
    owners: list[KafkaBroker] = field(default_factory=list)
    writers: list[Writer] = field(default_factory=list)
    acked: set[bytes] = field(default_factory=set)
    asked: set[bytes] = field(default_factory=set)
    started: int = 0
    depth: int = 0

    def begin(self) -> None:
        self.take_over()
        self.owners[-1].create_many(JOURNALS, SCHEMA)
        self.writers = [Writer(self, self.owners[-1]) for _ in range(3)]
        self.kafka.between = self.between

    def take_over(self) -> None:
        with contextlib.suppress(BrokerStopped):  # By one that took over meanwhile.
            self.owners.append(owner_of(self.kafka, self.folder, CONFIG))

    def between(self, who: str, _step: str) -> None:
        """A process sleeps between two steps of its transaction."""
        seconds = {f"millrace-{NAME}-{owner._producers._second_id}" for owner in self.owners}
        is_owner = who == f"millrace-{NAME}" or who in seconds
        if self.depth >= DEPTH_MAX:
            return
        self.depth += 1
        try:
            if not is_owner and self.chance.random() < 0.1:
                raise Killed
            if not is_owner and self.chance.random() < 0.5:
                self.step()
            elif is_owner and self.chance.random() < 0.1:
                self.take_over()
        finally:
            self.depth -= 1

    def step(self) -> None:
        """Somebody does something."""
        what = self.chance.random()
        if what < 0.6:
            idle = [writer for writer in self.writers if not writer.is_busy]
            if idle:
                self.write(self.chance.choice(idle))
        elif what < 0.75:
            self.look(self.chance.choice(self.owners))
        elif what < 0.85:
            self.send(self.owners[-1])
        elif what < 0.88:
            self.take_over()
        else:
            # A new process, in the place of one that may sleep for ever.
            self.writers.append(Writer(self, self.owners[-1]))

    def look(self, owner: KafkaBroker) -> None:
        """An owner looks for grants that are overdue; a late one, too."""
        for grant in owner._granting.overdue(float("inf")):
            self.tried(partial(owner.outcome, grant.writer, grant.number))

    def rows(self) -> tuple[dict[str, bytes], bytes]:
        row = b"%d" % len(self.asked)
        self.asked.add(row)
        names = self.chance.sample(JOURNALS, self.chance.choice((1, 1, 2)))
        return {name: b"%s/%s" % (row, name.encode()) for name in names}, row

    def send(self, owner: KafkaBroker) -> None:
        """The owner writes rows that were sent to it."""
        if any(grant for grant in owner._granting.overdue(float("inf"))):
            return  # It might wait for a writer that sleeps below this very call.
        rows, row = self.rows()
        if self.tried(lambda: self.sent(owner, rows)):
            self.acked.add(row)

    def sent(self, owner: KafkaBroker, rows: Mapping[str, bytes]) -> None:
        with owner.transaction() as t:
            for name, value in rows.items():
                t.append(name, batch(value))

    def write(self, writer: Writer) -> None:
        """A writer makes a transaction, and some are asked again after a lost answer."""
        rows, row = self.rows()
        writer.is_busy = True
        if self.chance.random() < 0.3:
            writer.owner = self.owners[-1]  # Else it may ask one that is fenced.
        writer.sequence += 1
        try:
            for _ in range(3):
                done = self.tried(lambda: self.made(writer, rows))
                if done:
                    self.acked.add(row)
                    break
                writer.owner = self.owners[-1]
        except Killed:
            self.writers.remove(writer)
            self.writers.append(Writer(self, self.owners[-1]))
        writer.is_busy = False

    def made(self, writer: Writer, rows: Mapping[str, bytes]) -> bool:
        producer = writer.owner.producer_id(writer.name)
        held, parts = [], []
        for number, (name, value) in enumerate(rows.items()):
            info = writer.owner.get(name)
            held.append(HeldRows.of(Append(journal=name, rows=batch(value)), info, CONFIG))
            parts.append(held[-1].announced(number, info, None))
        wanted = GrantRequest(parts=tuple(parts), producer=producer, sequence=writer.sequence)
        try:
            return writer.producers.make(wanted, held) is not None
        except SpotUnreadable:
            return False

    def tried(self, work: Callable[[], object]) -> bool:
        """Whether something was done for sure."""
        try:
            done = work()
        except Conflict:
            raise
        except MillraceError:
            return False
        return done is not False


def batch(value: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([value], pa.binary())], schema=SCHEMA)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_producers, "TopicWriter", FakeWriter)
    monkeypatch.setattr(kafka_cluster, "TopicWriter", FakeWriter)
    monkeypatch.setattr(kafka_cluster, "_ROW_MIN", 2)
    # Here grants are overdue whenever the seed says so.
    monkeypatch.setattr(KafkaBroker, "_look_for_overdue", lambda _self: None)


def problems(world: World) -> list[str]:
    """What a reader of the topics finds wrong; it knows nothing of books and grants."""
    found, seen = [], dict[bytes, list[str]]()
    for name in JOURNALS:
        entries = world.kafka.committed(f"{NAME}.{name}")
        offsets = [entry.offset for entry in entries]
        if offsets != list(range(len(offsets))):
            found.append(f"offsets of {name} are not dense: {offsets}")
        for entry in entries:
            if entry.value is not None:
                row, _, journal = entry.value.partition(b"/")
                seen.setdefault(row, []).append(journal.decode())
    for row, names in seen.items():
        if len(set(names)) != len(names):
            found.append(f"row {row!r} is there twice")
    found += [f"row {row!r} is lost" for row in world.acked if row not in seen]
    return found


def run(seed: int, folder: Path) -> tuple[list[str], int]:
    """A history from a seed; what is wrong at its end, and how much was acknowledged."""
    kafka = FakeWriter.kafka = FakeKafka()
    world = World(kafka, random.Random(seed), str(folder))  # noqa: S311 - replayed
    world.begin()
    for _ in range(40):
        world.step()
    kafka.between = lambda _who, _step: None
    world.take_over()
    found = problems(world)
    for name in JOURNALS:
        end, there = world.owners[-1].end_offset(name), len(kafka.committed(f"{NAME}.{name}"))
        found += [] if end == there else [f"{name} ends at {end}, and has {there} rows"]
    return found, len(world.acked)


def test_no_row_is_lost_or_doubled_whatever_happens_between_two_steps(tmp_path: Path) -> None:
    check(range(6), tmp_path)


@pytest.mark.slow
def test_the_same_in_many_histories(tmp_path: Path) -> None:
    check(seeds(900, first=100), tmp_path)


def check(many: range, folder: Path) -> None:
    histories = {seed: run(seed, folder) for seed in many}
    assert {seed: found for seed, (found, _) in histories.items() if found} == {}
    assert sum(acked for _, acked in histories.values()) > 5 * len(many)


def no_fence(_cluster: Cluster, _writers: object) -> None:
    """A take-over that lets writers go on."""


def no_wait(_commit: GrantingGroupCommit, _touched: object) -> None:
    """Decisions that do not wait for what is not saved yet."""


def not_there(_broker: KafkaBroker, _writer: str, _number: int) -> bool:
    """A silent writer is taken for a dead one that had written nothing."""
    return False


@pytest.mark.parametrize(
    ("where", "name", "mistake"),
    [
        (Cluster, "fence", no_fence),
        (GrantingGroupCommit, "_blocking", no_wait),
        (KafkaBroker, "_find_out", not_there),
    ],
)
def test_a_planted_mistake_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    name: str,
    mistake: Callable[..., object],
) -> None:
    monkeypatch.setattr(where, name, mistake)
    assert any(_goes_wrong(seed, tmp_path) for seed in range(200))


def _goes_wrong(seed: int, folder: Path) -> bool:
    try:
        return bool(run(seed, folder)[0])
    except (AssertionError, MillraceError):
        return True
