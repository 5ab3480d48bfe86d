"""A unit of a step that asks in batches, its provider, and a worker that is killed at any point.

Everything but the machine is a model: what is durable, what the provider has, a clock. A worker
carries out the machine's actions one by one; a kill ends it before, within or after each of them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from millrace.pipeline.batches.batch_machine import (
    BatchAction,
    BatchMachine,
    BatchRules,
    CallRows,
    EndBatchTurn,
    FetchResults,
    FindBatch,
    GiveUp,
    LookAtBatch,
    Looked,
    MakeBatch,
    PublishRows,
    ReadNewRows,
    ReadRowsAgain,
    RecordBatch,
    RowFate,
)
from millrace.pipeline.batches.batch_records import BatchRecord, outstanding
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.testing.paid_models.batch_desk import BatchDesk, BatchFate, BatchPlan
from millrace.testing.paid_models.model_answers import part_of

SECOND = 1_000_000
KILLS_MAX = 60


class Killed(Exception):
    """The worker is dead."""


@dataclass
class World:
    """What is there, and one seed that decides all that happens."""

    seed: int
    rows: int = 20
    now_us: int = 0
    committed: int = 0
    records: list[BatchRecord] = field(default_factory=list)
    published: list[tuple[int, str]] = field(default_factory=list)
    """Row and outcome, in order."""
    late: list[tuple[int, str, list[int]]] = field(default_factory=list)
    """When they arrive, their keys and rows: requests to make a batch, of workers that are dead."""
    made: Counter[str] = field(default_factory=Counter)
    """How many batches were made with each key."""
    kills: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - a seed replays it
        self.kill_chance = self.random.choice([0.0, 0.05, 0.2, 0.4])
        self.has_metadata = self.random.random() < 0.7
        self.gives_up = self.random.random() < 0.3
        self.offsets = sorted(self.random.sample(range(100), self.rows))
        self.end = 100
        self.desk = BatchDesk(plans=self.plan)
        self.bad = {n for n in self.offsets if self.random.random() < 0.05}
        self.failures = 0

    def plan(self, number: int) -> BatchPlan:
        """How a batch goes: each end that there is."""
        draw = random.Random(f"{self.seed} {number}")  # noqa: S311 - as above
        kind = draw.random()
        return BatchPlan(
            seconds=draw.choice([0, 30, 600]),
            expires=draw.choice([0.0, 0.3, 1.0]) if kind < 0.4 else 0.0,
            fails="a wrong file" if 0.4 < kind < 0.45 else "",
        )

    # Time and kills.
    def point(self) -> None:
        """A point at which the worker may be killed; time goes on."""
        self.now_us += self.random.randrange(SECOND)
        while self.late and self.late[0][0] <= self.now_us:
            self.create(*self.late.pop(0)[1:])
        if self.kills < KILLS_MAX and self.random.random() < self.kill_chance:
            self.kills += 1
            raise Killed

    def create(self, key: str, rows: list[int]) -> str:
        """What the provider does when it gets the request."""
        names: dict[str, dict[str, object]] = {str(row): {} for row in rows}
        batch = self.desk.create(self.now_us / SECOND, names, metadata={"key": key})
        self.made[key] += 1
        return batch.id

    # One turn of a worker.
    def turn(self) -> TurnEnd:
        last = self.records[-1] if self.records else None
        rules = BatchRules(
            name="unit",
            settle_us=60 * SECOND,
            publish_rows_max=self.random.choice([1, 3, 100]),
            gives_up=self.gives_up,
            attempts_max=3,
        )
        record = outstanding(last, self.committed)
        machine = BatchMachine(rules, record, at=self.committed)
        actions = machine.on_start()
        while True:
            (action,) = actions
            if isinstance(action, EndBatchTurn):
                return action.end
            self.point()
            actions = self.do(machine, action)
            self.point()

    def do(self, machine: BatchMachine, action: BatchAction) -> list[BatchAction]:
        """Carry out one action, or be killed within it."""
        now = self.now_us
        match action:
            case ReadNewRows():
                self.current = [n for n in self.offsets if n >= self.committed]
                return machine.on_rows(self.current, self.end, now)
            case ReadRowsAgain(next_):
                self.current = [n for n in self.offsets if self.committed <= n < next_]
                return machine.on_rows_again(self.current, next_, now)
            case RecordBatch(record):
                self.records.append(record)
                self.point()
                return machine.on_recorded()
            case GiveUp(record):
                self.records.append(record)
                self.failures += 1
                self.bad.clear()  # The user will have mended it.
                self.point()
                return [EndBatchTurn(TurnEnd.FAILED)]
            case MakeBatch():
                return self.make(machine, action)
            case FindBatch(record):
                return self.find(machine, record)
            case LookAtBatch(name):
                return machine.on_looked(*self.look(name), now)
            case FetchResults(names):
                return machine.on_results(self.results(names), now)
            case PublishRows(end):
                self.publish(end)
                self.point()
                return machine.on_published(now)
            case CallRows() | EndBatchTurn():
                raise AssertionError(action)

    def make(self, machine: BatchMachine, action: MakeBatch) -> list[BatchAction]:
        how = self.random.random()
        rows = [self.current[index] for index in action.rows]
        if how < 0.15:
            # The request is on its way: nobody waits for the answer any more.
            at = self.now_us + self.random.randrange(40 * SECOND)
            self.late.append((at, action.record.key, rows))
            self.late.sort()
            if how < 0.08:
                self.kills += 1
                raise Killed
            return machine.on_unknown()
        if how < 0.2:
            return machine.on_not_made("no such model", self.now_us)
        name = self.create(action.record.key, rows)
        self.point()
        return machine.on_made(name, self.now_us)

    def find(self, machine: BatchMachine, record: BatchRecord) -> list[BatchAction]:
        for batch in reversed(self.desk.batches):
            if batch.metadata["key"] == record.key:
                if not self.has_metadata and batch.ended(self.now_us / SECOND) is None:
                    return machine.on_found(None, self.now_us, is_sure=False)
                return machine.on_found(batch.id, self.now_us, is_sure=True)
        return machine.on_found(None, self.now_us, is_sure=True)

    def look(self, name: str) -> tuple[Looked, str]:
        batch = self.desk.get(name)
        assert batch is not None
        if self.random.random() < 0.03:
            self.desk.cancel(self.now_us / SECOND, name)
        if batch.ended(self.now_us / SECOND) is None:
            return "in work", ""
        if batch.plan.fails:
            return "failed", batch.plan.fails
        return ("cancelled" if batch.was_cancelled() else "ended"), ""

    def results(self, names: tuple[str, ...]) -> dict[int, RowFate]:
        fates: dict[int, RowFate] = {}
        index = {str(offset): n for n, offset in enumerate(self.current)}
        for name in names:
            batch = self.desk.get(name)
            assert batch is not None
            for row, fate in batch.fates(part_of).items():
                if row not in index or fates.get(index[row]) is RowFate.ANSWERED:
                    continue
                fates[index[row]] = {
                    BatchFate.ANSWERED: RowFate.ANSWERED,
                    BatchFate.REFUSED: RowFate.REFUSED,
                    BatchFate.EXPIRED: RowFate.OPEN,
                    BatchFate.CANCELLED: RowFate.OPEN,
                }[fate]
                if int(row) in self.bad:
                    fates[index[row]] = RowFate.REFUSED
        self.fates = fates
        return fates

    def publish(self, end: int) -> None:
        """One transaction: rows and the offset."""
        for n, offset in enumerate(self.current[:end]):
            if offset >= self.committed:
                fate = self.fates.get(n, RowFate.OPEN)
                self.published.append((offset, fate.value))
        self.committed = self.current[end] if end < len(self.current) else self.records[-1].next

    # All of it.
    def run(self) -> None:
        """Turns of workers until all is done; a step that gave up is run again by its user."""
        for _ in range(3000):
            try:
                end = self.turn()
            except Killed:
                self.now_us += self.random.randrange(15 * SECOND)
                continue
            if end is TurnEnd.OVER and self.committed == self.end:
                self.check()
                return
            self.now_us += self.random.randrange(90 * SECOND)
        raise AssertionError(f"seed {self.seed}: it does not end")

    def check(self) -> None:
        """What the world has to show in the end."""
        assert [row for row, _ in self.published] == self.offsets, f"seed {self.seed}"
        assert not self.late, f"seed {self.seed}"
        assert all(count == 1 for count in self.made.values()), f"seed {self.seed}: made twice"
        keys = {record.key for record in self.records}
        assert set(self.made) <= keys, f"seed {self.seed}: made without a record"
        # A row is asked again only if the batch before gave no answer of use to it.
        for offset in self.offsets:
            before = [b for b in self.desk.batches if str(offset) in b.requests]
            for batch in before[:-1]:
                fate = {} if batch.plan.fails else batch.fates(part_of)
                answered = fate.get(str(offset)) is BatchFate.ANSWERED
                assert not answered or self.failures, f"seed {self.seed}: row {offset} paid twice"
