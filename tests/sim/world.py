"""A world: journals, producers, a session of the real machines, and a client that holds it to all.

The client takes checkpoints, reads what they show at every member, commits, dies and comes again,
and compares everything with the oracle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from tests.sim.network import SimSession, Step
from tests.sim.oracle import Oracle, Pair, RowId, Shown, Wrong
from tests.sim.plan import START_MS, JournalPlan, Op, Plan
from tests.sim.writers import Writers, broker_at

from millrace.errors import (
    DataLost,
    JournalUnknown,
    LeaseLost,
    OffsetOutOfRange,
    StillNeeded,
    StorageError,
)
from millrace.reads.model.checkpoint import CheckpointNumber
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.model.tags import Tag
from millrace.reads.session import checkpoint_store
from millrace.reads.session.checkpoint_store import group_name
from millrace.reads.slice import journal_fetching

ROUNDS_MAX: Final = 400
STEPS_MAX: Final = 20_000
LATE: Final = 0.9
_LEASE: Final = "reads/sim"


@dataclass(slots=True, kw_only=True)
class _Checkpoint:
    """A checkpoint as it must be, whoever hands it out."""

    before: int
    """The number of the one before it, in what counts."""
    shown: dict[Pair, int]
    rows: set[RowId]
    by_member: dict[int, list[list[RowId]]] = field(default_factory=dict)
    """By number of members, what each of them read."""


class World:
    """Runs a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan.world
        self.now_ns = START_MS * 1_000_000
        self.broker = broker_at(lambda: self.now_ns)
        self.read = CoordinatedRead("sim", [Binding(**each) for each in plan.world.bindings])
        self.writers = Writers(self.broker, plan.world.producers, lambda: self.now_ns)
        for journal in plan.world.journals:
            self.writers.create(journal)
        self._journals: list[JournalPlan] = [*plan.world.journals, *plan.world.later]
        self.oracle = Oracle(self.read, self.writers.logs)
        self.checkpoints: dict[int, _Checkpoint] = {0: _Checkpoint(before=0, shown={}, rows=set())}
        self.taken: list[int] = []
        """Numbers that the client has taken and not committed, in order."""
        self.expected: list[int] = []
        """Numbers that have to come first, in order."""
        self.committed = 0
        """The client's last commit."""
        self.stored = 0
        """The last commit that the session was told."""
        self.highest = 0
        self.done: set[RowId] = set()
        self.floors: list[tuple[int, int, set[RowId]]] = []
        self.counts: Counter[str] = Counter()
        self.zombies: list[SimSession] = []
        self.session = self._open(plan.world.members)

    # The plan.
    def do(self, op: Op) -> None:
        """Carry out an operation."""
        self.counts[op.kind] += 1
        args = op.args
        match op.kind:
            case "now" | "add" | "touch" | "create" | "delete" | "truncate":
                self._at_journal(op)
            case "fresh":
                self._fresh(*args)
            case "end":
                self.writers.end(*args)
            case "ack":
                self.writers.ack(*args)
            case "rollback":
                self.writers.rollback(*args)
            case "resend":
                self.writers.resend(*args)
            case "clock":
                self._pass_time(args[0])
            case "steps":
                self._steps(args[0], Random(args[1]))  # noqa: S311
            case _:
                self._client(op)

    def _at_journal(self, op: Op) -> None:
        *who, place = op.args[:2]
        journal = self._journals[place]
        if op.kind == "add":
            self.writers.create(journal)  # A transaction may be the first to write there.
        match op.kind:
            case "now":
                self.writers.now(who[0], journal.name, op.args[2])
            case "add":
                self.writers.add(who[0], journal.name, op.args[2])
            case "touch":
                self.writers.add(who[0], journal.name, 0)
            case "create":
                self.writers.create(journal)
            case "delete":
                self.writers.delete(journal.name)
            case "truncate":
                self._truncate(journal.name)
            case _:
                raise AssertionError(op)

    def _fresh(self, producer: int, place: int, draw: int) -> None:
        """A transaction over a journal that nobody knows yet, of which the other half is ended."""
        fresh = JournalPlan(f"t/a/fresh-{self.counts['fresh']}", {})
        self.writers.create(fresh)
        self.writers.add(producer, self._journals[place].name, 1)
        self.writers.add(producer, fresh.name, 1)
        self.writers.end(producer, draw % 2, 0)  # The lowest id first: that is the old one.
        self._steps(20, Random(draw))  # noqa: S311

    def _client(self, op: Op) -> None:
        match op.kind:
            case "next":
                self.take(waits=False)
            case "settle":
                self._run_dry()
                self.take()
            case "reread":
                self._reread(op.args[0])
            case "commit":
                self._commit(op.args[0])
            case "crash":
                self._crash(*op.args)
            case "zombie":
                self._leave_zombie(op.args[0])
            case "tidy_fails":
                self.broker.fails_to_tidy = True
            case "disk_fails":
                disks = self.session.disks
                disks[op.args[0] % len(disks)]._appends_left = 1
            case _:
                raise AssertionError(op)

    def drain(self) -> None:
        """End what is open, and go on until everything has come out."""
        self.writers.finish()
        self._pass_time(1)
        idle = 0
        for _ in range(ROUNDS_MAX):
            session = self.session
            self._run_dry()
            idle = idle + 1 if session is self.session else 0
            while self.take():
                idle = 0
            self._commit_all()
            if session is not self.session:
                idle = 0
            if idle > 1:  # Waiting for a checkpoint did not bring one, either.
                due = self.session.next_due_ns()
                if due is None:
                    break
                self.now_ns = max(self.now_ns, due)
        missing = self.oracle.committed() - self.done
        if missing:
            raise Wrong(f"stuck: {len(missing)} rows never come out\n{self._standing(missing)}")

    def check_end(self) -> None:
        """What can be said at the end only."""
        for journal, floor, done in self.floors:
            self.oracle.check_floor(journal, floor, done)
        before = len(self.done)
        self._crash(2, 0)
        self._run_dry()
        while self.take():
            pass
        self._commit_all()
        if len(self.done) != before:
            raise Wrong(f"{len(self.done) - before} rows come again after the end")

    # Machines.
    def _steps(self, count: int, random: Random) -> None:
        for _ in range(count):
            steps = self.session.steps()
            zombie = None
            if self.zombies and random.random() < 0.3:
                zombie = self.zombies[-1]
                steps = zombie.steps()
            if not steps:
                return
            step = _one_of(steps, random)
            if zombie is None:
                self._guarded(step)
            else:
                self._as_zombie(zombie, step)

    def _run_dry(self) -> None:
        random = Random(len(self.done))  # noqa: S311
        for _ in range(STEPS_MAX):
            steps = self.session.steps()
            if not steps:
                self._check_rest()
                return
            self._guarded(_one_of(steps, random))
        raise Wrong(f"the machines do not come to rest\n{self._standing(set())}")

    def _check_rest(self) -> None:
        """Where nothing more can happen, whatever is committed and due has been told."""
        session = self.session
        if session.state.is_recovering or session.is_pushed_back():
            return
        last = self.checkpoints[(self.taken or [self.committed])[-1]]
        self.oracle.check_told(last.shown, session.state.read_to, self.now_ns)

    def _guarded(self, step: object) -> None:
        """Take a step; what may go wrong by the world's own doing ends the session."""
        assert callable(step)
        try:
            step()
        except StorageError:
            self.counts["disk failed"] += 1
            self._restart(self.session.members)
        except (JournalUnknown, DataLost):
            if all(not log.is_gone for log in self.writers.logs.values()):
                raise
            self.counts["journal gone"] += 1
            self._restart(self.session.members)

    def _as_zombie(self, zombie: SimSession, step: object) -> None:
        assert callable(step)
        try:
            step()
            found = zombie.actor.next_checkpoint()
            if found is not None and found.number not in self.checkpoints:
                raise Wrong(f"a zombie handed out checkpoint {found.number}")
            if found is not None and found.number > zombie.store._whole.number:
                zombie.actor.commit(found.number)
                if zombie.resumed.committed.number < found.number > self.stored:
                    raise Wrong(f"a zombie committed checkpoint {found.number}")
        except (LeaseLost, DataLost, JournalUnknown, OffsetOutOfRange, StorageError) as error:
            self.counts[f"zombie: {type(error).__name__}"] += 1
            self.zombies.remove(zombie)

    def _pass_time(self, passed_ms: int) -> None:
        self.now_ns += passed_ms * 1_000_000 + 100
        self.session.renew()

    # Sessions.
    def _open(self, members: int) -> SimSession:
        self.broker.fence(_LEASE)
        self.broker.acquire(_LEASE, "client")
        last_commit = read_through = None
        if self.plan.own_log and self.committed:
            last_commit = self.committed
            read_through = self.expected[-1] if self.expected else None
        try:
            return self._opened(members, last_commit, read_through)
        except DataLost:
            if not any(log.is_gone for log in self.writers.logs.values()):
                raise
            self.counts["not to be replayed"] += 1
            self.expected = []
            return self._opened(members, self.committed, None)

    def _opened(
        self, members: int, last_commit: int | None, read_through: int | None
    ) -> SimSession:
        lease = self.broker.leases(_LEASE)[0]
        return SimSession(
            plan=self.plan,
            read=self.read,
            members=members,
            broker=self.broker,
            lease=lease,
            now_ns=lambda: self.now_ns,
            last_commit=last_commit,
            read_through=read_through,
        )

    def _restart(self, members: int) -> None:
        """Begin again from what is stored."""
        self.session.close()
        self._begin_again(members)

    def _begin_again(self, members: int) -> None:
        self.expected = [*self.taken, *self.expected]
        self.taken = []
        self.session = self._open(members)

    def _crash(self, members: int, how: int) -> None:
        if how == 1 and not self.plan.own_log:
            # It dies after the checkpoint was stored, before the client has it.
            self._next()
        self._restart(members)

    def _leave_zombie(self, members: int) -> None:
        self.zombies.append(self.session)
        self._begin_again(members)

    # The client.
    def take(self, *, waits: bool = True) -> bool:
        """Take the next checkpoint and hold it to everything; whether there was one."""
        number = self._next()
        if number is None:
            if waits:
                self.session.want()
            return False
        self._read(number)
        return True

    def _next(self) -> int | None:
        session, state = self.session, self.session.state
        is_replay = state.is_recovering
        last = (self.taken or [self.committed])[-1]
        shown = self.checkpoints[last].shown
        predicted = shown
        if not is_replay:
            known = state.journals.catalog.tags().tolist()
            predicted = self.oracle.predict(shown, state.read_to, state.points, known)
        rows = self.oracle.rows_between(shown, predicted)
        found = session.actor.next_checkpoint()
        if found is None:
            if rows:
                raise Wrong(f"rows that are complete are not shown: {sorted(rows)[:10]}")
            return None
        number = int(found.number)
        if is_replay:
            if not self.expected or number != self.expected[0]:
                raise Wrong(f"checkpoint {number} came, to be replayed were {self.expected}")
            self.expected.pop(0)
            self.counts["replayed"] += 1
        else:
            if self.expected:
                raise Wrong(f"checkpoint {number} came before {self.expected} were replayed")
            if number <= self.highest:
                raise Wrong(f"checkpoint {number} has a number that was given out before")
            self.highest = number
            self.checkpoints[number] = _Checkpoint(before=last, shown=predicted, rows=rows)
            self.counts["new"] += 1
        self.taken.append(number)
        return number

    def _read(self, number: int) -> None:
        expected = self.checkpoints[number]
        members = [self._rows(member, number) for member in range(self.session.members)]
        every = [row for rows in members for row in rows]
        ids = Counter(row.id for row in every)
        twice = [row for row, count in ids.items() if count > 1]
        if twice:
            raise Wrong(f"checkpoint {number} shows rows twice: {twice[:10]}")
        again = self.done & set(ids)
        if again:
            raise Wrong(f"checkpoint {number} shows rows again: {sorted(again)[:10]}")
        if set(ids) != expected.rows:
            more, less = sorted(set(ids) - expected.rows), sorted(expected.rows - set(ids))
            raise Wrong(f"checkpoint {number} shows {more[:10]} too much and lacks {less[:10]}")
        by_member = [[row.id for row in rows] for rows in members]
        known = expected.by_member.setdefault(len(members), by_member)
        if known != by_member:
            raise Wrong(f"checkpoint {number} is not what it was at each member")
        for member, rows in enumerate(members):
            self.oracle.check_rows(member, len(members), rows)
        self.oracle.check_values(every)
        self.oracle.check_due(every, self.now_ns)
        shown = self.done | {
            row for each in self.taken if each < number for row in self.checkpoints[each].rows
        }
        self.oracle.check_whole(shown, set(ids))
        self.counts["rows"] += len(every)

    def _rows(self, member: int, number: int) -> list[Shown]:
        return [
            Shown(
                tag=row["_mr_tag"],
                offset=row["_mr_offset"],
                producer=row["_mr_producer"],
                clock=row["_mr_clock"],
                k=row["k"],
                v=row["v"],
            )
            for batch in self.session.actor.read(member, CheckpointNumber(number))
            for row in batch.to_pylist()
        ]

    def _reread(self, draw: int) -> None:
        if self.taken:
            self._read(self.taken[draw % len(self.taken)])

    def _commit(self, draw: int) -> None:
        if not self.taken:
            return
        place = draw % len(self.taken)
        number = self.taken[place]
        for each in self.taken[: place + 1]:
            rows = self.checkpoints[each].rows
            if rows & self.done:
                raise Wrong(f"checkpoint {each} is done twice")
            self.done |= rows
        self.taken = self.taken[place + 1 :]
        self.committed = number
        if not self.plan.own_log or draw & 16:
            self._tell(number)

    def _tell(self, number: int) -> None:
        try:
            self.session.actor.commit(CheckpointNumber(number))
        except StorageError:  # It is stored, and what lies before it is not tidied away.
            self.counts["died in a commit"] += 1
            self._restart(self.session.members)
        self.stored = number
        for log in self.writers.logs.values():
            if not log.is_gone:
                floor = self.broker.committed(group_name(self.read.name), log.plan.name)
                if floor is not None:
                    self.floors.append((log.id, floor, set(self.done)))

    def _commit_all(self) -> None:
        while self.taken:
            self._commit(len(self.taken) - 1 | 16 * len(self.taken))
        if self.stored < self.committed:
            self._tell(self.committed)

    def _truncate(self, name: str) -> None:
        journal = self.writers.id_of(name)
        group = group_name(self.read.name)
        if journal is None or self.broker.committed(group, name) is None:
            return  # Nobody has said yet that it is needed.
        end = self.broker.end_offset(name, isolation="raw")
        try:
            self.broker.truncate_before(name, end)
        except StillNeeded:
            self.broker.truncate_before(name, self.broker.committed(group, name) or 0)

    def _standing(self, missing: set[RowId]) -> str:
        """How everything stands, for people."""
        session = self.session
        lines = [f"  rows: {sorted(missing)[:10]}"]
        lines += [f"  {name}: {list(each)}" for name, each in session.streams.items() if each]
        lines += [f"  {each}" for each in session.state.unmet()]
        handed, is_on = list(session.state.handed_out), session.state._is_limit_on
        lines += [f"  handed out: {handed}, limit on: {is_on}"]
        lines += [f"  read to {session.state.read_to}, replaying: {session.state.is_recovering}"]
        for number, queue in enumerate(session.queues):
            lines.append(f"  queue {number}: {queue.stats()}")
        for number, slice_ in enumerate(session.slices):
            state = slice_._state
            sent = [(box._unanswered, len(box._waiting)) for box in state.outboxes]
            tags = [Tag(tag) for tag in state._reads.tags().tolist()]
            reads = {tag: state._reads.of(tag) for tag in tags}
            lines.append(f"  slice {number}: outboxes {sent}, reads {reads}")
        return "\n".join(lines)


def _one_of(steps: list[tuple[str, Step]], random: Random) -> Step:
    """Any of these; journals are looked at late, so that reports name some that nobody knows."""
    name, step = random.choice(steps)
    if name == "look" and random.random() < LATE:
        _, step = random.choice(steps)
    return step


def run(plan: Plan) -> Counter[str]:
    """Run a plan to its end; anything that is wrong raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_store, "_PART_BYTES", plan.world.part_bytes)
        patch.setattr(journal_fetching, "_ONE_BY_ONE_MAX", plan.world.one_by_one)
        world = World(plan)
        for op in plan.ops:
            world.do(op)
        world.drain()
        world.check_end()
    return world.counts
