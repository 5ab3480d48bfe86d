"""Counts the rows and calls of a job's steps, from the journals of its broker.

Invariant: a step's counts never miss rows that its committed offset covers, also after those rows
were truncated: their number is recorded before they are removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import pyarrow as pa

from millrace.errors import JournalUnknown
from millrace.journal.broker import Broker
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.values import JournalInfo, Position
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import STATE_STEPS, TABLE_SINKS, JobPart, JobRecord
from millrace.pipeline.paid import call_records
from millrace.pipeline.paid.call_records import CallRecord, Totals
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_size import StateSize

_LAST_ROWS = (4, 64, 4096)
_TRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTotals:
    """Totals of a step with state, over its partitions."""

    skipped: int
    """Rows that were left out."""
    rows: int
    bytes: int
    """About how many bytes of memory these rows take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counts of one part, over all runs."""

    rows_in: int = 0
    rows_out: int | None = None
    backlog: int = 0
    calls: Totals | None = None
    dead_letters: int = 0
    state: StateTotals | None = None
    """Of a step with state."""
    units: int = 0
    waiting: int = 0
    """The rows of the backlog that the run has to do: all except rows that came later."""
    left_in: frozenset[str] = frozenset()
    """The journals that these rows are in."""

    @property
    def skipped(self) -> int:
        """Rows that a step with state left out."""
        return 0 if self.state is None else self.state.skipped


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of all parts at one moment, by name."""

    parts: Mapping[str, Counts]

    @property
    def backlog(self) -> int:
        """The number of rows that steps have still to do."""
        return sum(counts.backlog for counts in self.parts.values())


@dataclass(slots=True)
class _FilesRead:
    """The offset up to which a record of files was read, and the number of rows in the files."""

    offset: int = 0
    rows: int = 0


@dataclass(slots=True)
class Counting:
    """Counts the progress of a job, repeatedly."""

    broker: Broker
    record: JobRecord
    removed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """For each journal's id, the offset it was truncated to, and the number of rows below it."""
    ends: Mapping[str, int] | None = None
    """The ends of the user's journals for a run that does not wait for more rows. The journals may
    grow; a journal without an end here came later."""
    journals: frozenset[str] = frozenset()
    """The journals that existed at the last count."""
    _files: dict[str, _FilesRead] = field(default_factory=dict)

    def note(self, events: Sequence[JobEvent]) -> None:
        """Note the truncations in these events."""
        for event in events:
            if event.happened is JobEventKind.TRUNCATED:
                for journal_id, (to, rows) in event.detail["journals"].items():
                    self.removed.setdefault(int(journal_id), []).append((to, rows))

    def rows_below(self, journal_id: int, offset: int) -> int:
        """The number of rows that lay below an offset to which a journal was truncated."""
        known = [rows for to, rows in self.removed.get(journal_id, ()) if to <= offset]
        return max(known, default=0)

    def count(self) -> Counted:
        """Count now; parts near the sources first, so that no row on its way is missed."""
        for _ in range(_TRIES):
            # Somebody else may be setting a step back, which deletes journals.
            with contextlib.suppress(JournalUnknown):
                return self._count()
        return self._count()

    def _count(self) -> Counted:
        journals = journals_of(self.broker, self.record)
        self.journals = frozenset(journals)
        group_journals: list[tuple[str, str]] = []
        for part in self.record.hops:
            for info in units_of(part, journals):
                group_journals += [
                    (self.record.group_of(part), info.name),
                    (self._nobody, info.name),
                ]
        group_journals += [(self._nobody, name) for name in journals if self._is_own(name)]
        positions = self.broker.positions(group_journals)
        at = {(position.group, position.journal): position for position in positions}
        folders = (f"/{hops.RECORDED}/", f"/{hops.RECORDED_BEFORE}/")
        recorded = [n for n in journals if any(folder in n for folder in folders)]
        records = last_calls(self.broker, [at[self._nobody, n] for n in recorded])
        states = self._states(journals, at)
        parts = self.record.kept
        return Counted({p.name: self._of(p, journals, at, records, states) for p in parts})

    def _states(
        self, journals: Mapping[str, JournalInfo], at: Mapping[tuple[str, str], Position]
    ) -> Mapping[str, StateTotals]:
        """What each step with state left out, and how large its state is."""
        of_step: dict[str, list[tuple[str, str]]] = {}
        for part in self.record.hops:
            if part.kind in STATE_STEPS:
                numbers = {hops.partition_of(info.name) for info in units_of(part, journals)}
                job, step = self.record.job, part.name
                of_step[step] = [
                    (hops.skipped_journal(job, step, n), hops.size_journal(job, step, n))
                    for n in numbers
                ]
        names = [name for pairs in of_step.values() for pair in pairs for name in pair]
        asked = [at[self._nobody, name] for name in names if name in journals]
        rows = {name: row.to_pylist()[0] for name, row in last_rows(self.broker, asked).items()}
        nothing = StateSize(rows=0, bytes=0).to_rows().to_pylist()[0]
        return {
            step: StateTotals(
                skipped=sum(SkippedRows.from_row(rows.get(skips)).total for skips, _ in pairs),
                rows=sum(rows.get(size, nothing)["rows"] for _, size in pairs),
                bytes=sum(rows.get(size, nothing)["bytes"] for _, size in pairs),
            )
            for step, pairs in of_step.items()
        }

    @property
    def _nobody(self) -> str:
        """A group that never commits: its backlog is the number of all rows."""
        return f"{hops.ROOT}/{self.record.job}"

    def _is_own(self, name: str) -> bool:
        return name.startswith(f"{hops.ROOT}/{self.record.job}/")

    def _of(
        self,
        part: JobPart,
        journals: Mapping[str, JournalInfo],
        at: Mapping[tuple[str, str], Position],
        records: Mapping[str, CallRecord],
        states: Mapping[str, StateTotals],
    ) -> Counts:
        job = self.record.job
        units = units_of(part, journals)
        done = backlog = waiting = 0
        left_in = set()
        for info in units:
            position = at[self.record.group_of(part), info.name]
            done += max(0, self._rows(at[self._nobody, info.name], info) - position.backlog)
            backlog += position.backlog
            if (position.committed or 0) < self._end(position):
                waiting += position.backlog
                left_in |= {info.name} if position.backlog else set()
        prefix = self.record.output_of(part)
        out: int | None
        if prefix is None:
            out = self._rows_in_files(part, journals)
        else:
            out = sum(
                self._rows(at[self._nobody, name], info)
                for name, info in journals.items()
                if name.startswith(f"{prefix}/") and (self._nobody, name) in at
            )
        totals = [
            records[name].totals
            for info in units
            if (name := _recorded(job, part.name, info.id, records)) is not None
        ]
        called = (*part.fused, part.name)
        letters = [at.get((self._nobody, hops.dead_letters(job, name))) for name in called]
        retried = [at.get((self._nobody, hops.retries_journal(job, name))) for name in called]
        return Counts(
            rows_in=done,
            rows_out=out,
            backlog=backlog,
            calls=_sum(totals) if part.expensive else None,
            dead_letters=sum(position.backlog for position in letters if position is not None)
            - sum(position.backlog for position in retried if position is not None),
            state=states.get(part.name),
            units=len(units),
            waiting=waiting,
            left_in=frozenset(left_in),
        )

    def _end(self, position: Position) -> int:
        """The offset up to which the run reads a journal."""
        if self.ends is None or self._is_own(position.journal):
            return position.end
        return self.ends.get(position.journal, 0)

    def _rows(self, position: Position, info: JournalInfo) -> int:
        """The number of all rows that a journal ever had."""
        return position.backlog + self.rows_below(info.id, position.start)

    def _rows_in_files(self, part: JobPart, journals: Mapping[str, JournalInfo]) -> int | None:
        name = hops.files_journal(self.record.job, part.name)
        if part.kind not in ("sink_parquet", *TABLE_SINKS):
            return None
        if name not in journals:
            return 0
        read = self._files.setdefault(name, _FilesRead())
        while True:
            fetched = self.broker.read(name, read.offset)
            if fetched.num_rows:
                read.rows += sum(fetched.rows()["rows"].to_pylist())
            if fetched.next_offset == read.offset:
                return read.rows
            read.offset = fetched.next_offset


def journals_of(broker: Broker, record: JobRecord) -> dict[str, JournalInfo]:
    """Every journal that a job reads or writes, by name."""
    journals = {info.name: info for info in broker.list(f"{hops.ROOT}/{record.job}")}
    others = {prefix for part in record.kept for prefix in part.prefixes}
    for prefix in sorted(others):
        if not prefix.startswith(f"{hops.ROOT}/{record.job}/"):
            journals |= {info.name: info for info in broker.list(prefix)}
    return journals


def units_of(part: JobPart, journals: Mapping[str, JournalInfo]) -> list[JournalInfo]:
    """The journals that a part reads."""
    return [info for name, info in journals.items() if part.reads(name)]


def last_calls(broker: Broker, positions: Sequence[Position]) -> dict[str, CallRecord]:
    """The last record of each of these journals; journals without a record are left out."""
    rows = last_rows(broker, positions)
    return {name: call_records.from_rows(row)[0] for name, row in rows.items()}


def last_rows(broker: Broker, positions: Sequence[Position]) -> dict[str, pa.Table]:
    """The last row of each of these journals; journals without a row are left out."""
    found: dict[str, pa.Table] = {}
    for back in _LAST_ROWS:
        missing = [p for p in positions if p.journal not in found and p.backlog]
        if not missing:
            break
        offsets = {p.journal: max(p.start, p.end - back) for p in missing}
        for name, fetched in broker.read_many(ReadRequest(offsets=offsets)).items():
            rows = fetched.rows()
            if rows.num_rows:
                found[name] = rows.slice(rows.num_rows - 1)
    return found


def _recorded(
    job: str, step: str, journal_id: int, records: Mapping[str, CallRecord]
) -> str | None:
    """The journal with the last record of a unit: perhaps one that an earlier version wrote."""
    names = (
        hops.calls_journal(job, step, journal_id),
        hops.calls_journal_before(job, step, journal_id),
    )
    return next((name for name in names if name in records), None)


def _sum(totals: Sequence[Totals]) -> Totals:
    names = [each.name for each in fields(Totals)]
    return Totals(**{name: sum(getattr(total, name) for total in totals) for name in names})
