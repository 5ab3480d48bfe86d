"""What must come out, worked out from the rows as they were written and from nothing else.

It has a sequencing of its own, after the table of what OUTSIDE, CONTINUE and ACK rows do, and says
from what slices have told the session which rows the next checkpoint must show: all of them, and no
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.sim.writers import JournalLog, Raw

from millrace.durations import ms
from millrace.journal.core.row_format import Flag
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead

JOURNAL_BITS: Final = 40
RowId = tuple[int, int]
"""A tag and an offset."""
Pair = tuple[int, int]
"""A tag and a producer."""


class Wrong(AssertionError):
    """Something came out that must not, or did not come out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Rows of a producer that one row of a journal committed."""

    producer: int
    clock: int
    at: int
    rows: tuple[Raw, ...]
    hints: tuple[int, ...]

    @property
    def commits_itself(self) -> bool:
        return bool(self.rows) and self.rows[-1].flag is Flag.OUTSIDE


@dataclass(slots=True)
class _Standing:
    last: int = 0
    open: list[Raw] = field(default_factory=list)


@dataclass(slots=True)
class _Truth:
    """A journal, sequenced."""

    taken: int = 0
    standing: dict[int, _Standing] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)

    def catch_up(self, rows: Sequence[Raw]) -> None:
        for row in rows[self.taken :]:
            self._take(row)
        self.taken = len(rows)

    def _take(self, row: Raw) -> None:
        of = self.standing.setdefault(row.producer, _Standing())
        highest = of.open[-1].clock if of.open else 0
        if row.flag is Flag.ACK:
            if row.clock <= of.last:
                of.open = []  # A rollback, or nothing.
            else:
                assert row.clock >= highest, "the simulation wrote an ACK that commits half"
                self._commit(of, row, tuple(of.open))
        elif row.clock <= of.last or row.clock <= highest:
            return  # A duplicate.
        elif row.flag is Flag.OUTSIDE:
            assert not of.open, "the simulation wrote a row into its own transaction"
            self._commit(of, row, (row,))
        else:
            of.open.append(row)

    def _commit(self, of: _Standing, row: Raw, rows: tuple[Raw, ...]) -> None:
        self.commits.append(
            Commit(
                producer=row.producer, clock=row.clock, at=row.offset, rows=rows, hints=row.hints
            )
        )
        of.last, of.open = row.clock, []


class Oracle:
    """Knows the bindings and everything that was written."""

    def __init__(self, read: CoordinatedRead, logs: Mapping[int, JournalLog]) -> None:
        self._bindings = read.bindings
        self._cohorts = [(each.priority, each.delay) for each in read.bindings]
        self._logs = logs
        self._truths: dict[int, _Truth] = {}

    # Tags.
    def tags(self, *, with_gone: bool = False) -> list[int]:
        """Everything that is read, of journals that are there."""
        return [
            number << JOURNAL_BITS | log.id
            for number, binding in enumerate(self._bindings)
            for log in self._logs.values()
            if (with_gone or not log.is_gone) and _takes(binding, log)
        ]

    def binding(self, tag: int) -> Binding:
        return self._bindings[tag >> JOURNAL_BITS]

    def log(self, tag: int) -> JournalLog:
        return self._logs[_journal(tag)]

    def _cohort(self, tag: int) -> tuple[int, int]:
        return self._cohorts[tag >> JOURNAL_BITS]

    def commits(self, tag: int) -> list[Commit]:
        journal = _journal(tag)
        truth = self._truths.setdefault(journal, _Truth())
        truth.catch_up(self._logs[journal].rows)
        return truth.commits

    # What must be shown.
    def committed(self) -> set[RowId]:
        """Every row that counts now and is read."""
        return {
            row for tag in self.tags() for each in self.commits(tag) for row in self._of(tag, each)
        }

    def predict(
        self,
        shown: Mapping[Pair, int],
        read_to: Mapping[int, int],
        points: Mapping[Pair, set[int]],
        known: Iterable[int],
    ) -> dict[Pair, int]:
        """Up to which clocks the next checkpoint shows, by what slices have told.

        `read_to` is how far each tag was read and told of, `known` the tags that the session reads.
        Slices join commits that name nobody, so only what they told as `points` can be shown up to.
        """
        tags = set(known)
        told = {
            tag: [each for each in self.commits(tag) if each.at < offset]
            for tag, offset in read_to.items()
        }
        reached = dict(shown)
        for tag, commits in told.items():
            for each in commits:
                pair = (tag, each.producer)
                reached[pair] = max(reached.get(pair, 0), each.clock)
        bounds: dict[tuple[tuple[int, int], int], int] = {}
        for tag, commits in told.items():
            for each in commits:
                if each.clock <= shown.get((tag, each.producer), 0):
                    continue
                waits = (
                    reached.get((target, each.producer), 0) < each.clock
                    for target in self._targets(tag, each, tags)
                )
                if any(waits):
                    key = (self._cohort(tag), each.producer)
                    bounds[key] = min(bounds.get(key, each.clock), each.clock)
        for tag, commits in told.items():
            self._check_points(tag, commits, shown, points, tags)
        out = dict(shown)
        for tag, commits in told.items():
            for each in commits:
                bound = bounds.get((self._cohort(tag), each.producer))
                pair = (tag, each.producer)
                if (bound is None or each.clock < bound) and each.clock in points.get(pair, ()):
                    out[pair] = max(out.get(pair, 0), each.clock)
        return out

    def _check_points(
        self,
        tag: int,
        commits: Sequence[Commit],
        shown: Mapping[Pair, int],
        points: Mapping[Pair, set[int]],
        known: set[int],
    ) -> None:
        """A commit that names journals of its cohort is not joined with those around it."""
        before: dict[int, int] = {}
        for each in commits:
            pair = (tag, each.producer)
            if each.clock <= shown.get(pair, 0):
                continue
            told = points.get(pair, ())
            alone = self._targets(tag, each, known)
            if alone and each.clock not in told:
                raise Wrong(f"{each} of tag {tag} names others and was told with another commit")
            if alone and each.producer in before and before[each.producer] not in told:
                raise Wrong(f"what came before {each} of tag {tag} was told together with it")
            before[each.producer] = each.clock
        for producer, clock in before.items():
            if clock not in points.get((tag, producer), ()):
                raise Wrong(f"the last commit {clock} of {producer} in tag {tag} was not told")

    def rows_between(self, before: Mapping[Pair, int], now: Mapping[Pair, int]) -> set[RowId]:
        """The rows that become visible between two of them."""
        out: set[RowId] = set()
        for tag, producer in now:
            above, upto = before.get((tag, producer), 0), now[tag, producer]
            if upto > above:
                for each in self.commits(tag):
                    if each.producer == producer and above < each.clock <= upto:
                        out |= self._of(tag, each)
        return out

    def _targets(self, tag: int, commit: Commit, known: set[int]) -> list[int]:
        """The tags that a commit must be seen in, too. Only ACKs name any."""
        if commit.commits_itself:
            return []
        journals = {*commit.hints, _journal(tag)}
        cohort = self._cohort(tag)
        return [
            each
            for each in known
            if each != tag and _journal(each) in journals and self._cohort(each) == cohort
        ]

    def _of(self, tag: int, commit: Commit) -> set[RowId]:
        """The rows of a commit that the binding takes."""
        binding = self.binding(tag)
        low, high = binding.not_before_ms, binding.not_after_ms
        out = set()
        for row in commit.rows:
            at_ns = (row.clock >> 4) * 100
            if low is not None and at_ns < low * 1_000_000:
                continue
            if high is not None and at_ns >= (high + 1) * 1_000_000:
                continue
            out.add((tag, row.offset))
        return out

    # Checks.
    def check_whole(self, shown: set[RowId], more: set[RowId]) -> None:
        """Each transaction, within a cohort, is in what is shown with all its rows or with none."""
        found: dict[tuple[tuple[int, int], int, int], list[tuple[int, set[RowId]]]] = {}
        for tag in self.tags():
            for each in self.commits(tag):
                rows = self._of(tag, each)
                if rows and not each.commits_itself:
                    key = (self._cohort(tag), each.producer, each.clock)
                    found.setdefault(key, []).append((tag, rows))
        both = shown | more
        for (_, producer, clock), parts in found.items():
            states = {bool(rows <= both) for _, rows in parts}
            half = [rows for _, rows in parts if rows & both and not rows <= both]
            if len(states) > 1 or half:
                raise Wrong(f"transaction {clock} of {producer} is shown by half: {parts}")

    def check_rows(self, member: int, members: int, rows: Sequence[Shown]) -> None:
        """Rows of a member: whose they are, and their order."""
        highest: dict[int, tuple[int, int]] = {}
        last = (-(2**40), 0)
        for row in rows:
            binding = self.binding(row.tag)
            place = _hash_long(row.k) if binding.key else _rotated(row.clock)
            owner = next(n for n in range(members) if place < (n + 1) * 2**32 // members)
            if owner != member:
                raise Wrong(f"{row} is at member {member} of {members}, it belongs to {owner}")
            offset, key = highest.get(row.tag, (-1, 0))
            if row.offset <= offset:
                raise Wrong(f"{row} comes after offset {offset} of the same journal")
            key = max(key, row.clock + (ms(binding.read_delay) * 10_000 << 4))
            highest[row.tag] = (row.offset, key)
            if (-binding.priority, key) < last:
                raise Wrong(f"{row} of priority {binding.priority} comes too late: {key} {last}")
            last = (-binding.priority, key)

    def check_values(self, rows: Sequence[Shown]) -> None:
        """Rows are what was written at their offset."""
        for row in rows:
            raw = next((r for r in self.log(row.tag).rows if r.offset == row.offset), None)
            expected = None if raw is None else (raw.producer, raw.clock, raw.k, raw.v)
            if (row.producer, row.clock, row.k, row.v) != expected:
                raise Wrong(f"{row} was written as {raw}")

    def check_due(self, rows: Sequence[Shown], now_ns: int) -> None:
        """No row is shown before its delay is over."""
        for row in rows:
            delay_ms = ms(self.binding(row.tag).read_delay)
            due = row.clock + (delay_ms * 10_000 << 4)
            if delay_ms and due > now_ns // 100 << 4:
                raise Wrong(f"{row} is shown before its delay is over: due {due}")

    def check_told(
        self, shown: Mapping[Pair, int], read_to: Mapping[int, int], now_ns: int
    ) -> None:
        """Every commit has been told that no row before it in its journal holds back by its delay.

        Nothing else may: no other journal, and no other producer.
        """
        now = now_ns // 100 - 1 << 4  # A slice wakes a moment after a row is due.
        for tag in self.tags():
            delay = ms(self.binding(tag).read_delay) * 10_000 << 4
            held = next(
                (r.offset for r in self.log(tag).rows if delay and r.clock + delay > now), None
            )
            for each in self.commits(tag):
                is_shown = each.clock <= shown.get((tag, each.producer), 0)
                is_due = held is None or each.at < held
                if is_due and not is_shown and each.at >= read_to.get(tag, 0):
                    raise Wrong(f"a commit that is due is held back: {each} of tag {tag}")

    def check_floor(self, journal: int, floor: int, done: set[RowId]) -> None:
        """Below a floor lies nothing that is committed and not done."""
        for tag, offset in self.committed() - done:
            if _journal(tag) == journal and offset < floor:
                raise Wrong(f"{journal} is given up below {floor}, row {tag, offset} is not done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A row as a member's queue gives it."""

    tag: int
    offset: int
    producer: int
    clock: int
    k: int
    v: int

    @property
    def id(self) -> RowId:
        return (self.tag, self.offset)


def _takes(binding: Binding, log: JournalLog) -> bool:
    name, prefix = log.plan.name, binding.prefix
    if name != prefix and not name.startswith(prefix + "/"):
        return False
    return all(log.plan.labels.get(key) in values for key, values in binding.labels.items())


def _journal(tag: int) -> int:
    return tag & ((1 << JOURNAL_BITS) - 1)


_32: Final = 0xFFFFFFFF


def _hash_long(value: int) -> int:
    """Spark's hash of a long with seed 42."""
    hashed = 42
    for word in (value & _32, value >> 32 & _32):
        mixed = word * 0xCC9E2D51 & _32
        mixed = (mixed << 15 | mixed >> 17) & _32
        hashed ^= mixed * 0x1B873593 & _32
        hashed = (hashed << 13 | hashed >> 19) & _32
        hashed = (hashed * 5 + 0xE6546B64) & _32
    hashed ^= 8
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _32
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _32
    return hashed ^ hashed >> 16


def _rotated(clock: int) -> int:
    folded = ((clock >> 4) ^ (clock & 15)) & _32
    return int(f"{folded:032b}"[::-1], 2)
