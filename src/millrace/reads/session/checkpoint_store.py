"""Where the checkpoints of a coordinated read are kept: a journal of its own in the workspace.

A checkpoint is stored under its number, fenced by the session's lease, before it is handed out; a
commit stores the number and moves the read's group, so that no rows are truncated that it still
needs. Now and then a whole checkpoint is stored, and the rows before it are removed.

Invariant: `load` returns exactly what calls that returned have stored, in order; a session whose
lease is over stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import pyarrow as pa

from millrace.errors import DataLost, JournalUnknown, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.values import ANYTHING, Append, Commit, Lease, Publish
from millrace.names import check_text, existing
from millrace.reads.model.checkpoint import (
    BEGINNING,
    Checkpoint,
    CheckpointNumber,
    merge,
    without_done,
    without_silent,
)
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.session.checkpoint_times import CheckpointTimes
from millrace.reads.session.handed_out import Floor
from millrace.reads.session.session_state import Resumed
from millrace.reads.session.stored_reads import decode_read, encode_read
from millrace.storage import documents

_PART_BYTES: Final = 256 * 1024
"""Larger ones are cut, since brokers limit what one row may hold."""
_READ_ROWS: Final = 10_000
READS: Final = "millrace/reads"
"""Above the journals of checkpoints of all coordinated reads."""
_NAME_PART: Final = 2
"""Which part of the journal's name is the name of the coordinated read."""
_TO_FIX: Final = "read under another name, which begins anew"


class CheckpointRowKind(StrEnum):
    """What a row of the journal holds."""

    PREPARED = "prepared"
    COMMITTED = "committed"
    WHOLE = "whole"
    DROPPED = "dropped"
    """Checkpoints prepared above this number never count."""
    DEFINITION = "task"
    """The coordinated read as it was when this was written, as JSON."""
    GIVEN = "given"
    """Numbers up to this one were given out; as JSON, which number was the last one when."""


SCHEMA: Final = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("part", pa.int64(), nullable=False),
        pa.field("parts", pa.int64(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class _Row:
    number: CheckpointNumber
    kind: CheckpointRowKind
    content: bytes = b""


def journal_name(read: str) -> str:
    """The journal that keeps the checkpoints of a coordinated read."""
    return f"{READS}/{read}/checkpoints"


def group_name(read: str) -> str:
    """The group of a coordinated read in its journals."""
    return f"reads/{read}"


class CheckpointStore:
    """The checkpoints of one coordinated read, for the session that holds its lease."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        lease: Lease,
        *,
        silent_ms: int | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Producers that were silent for longer than `silent_ms` are left out, if given."""
        self._silent_ms = silent_ms
        self._now_ms = now_ms
        self._definition = b""
        self._history = CheckpointTimes()
        self._broker = broker
        self._name = name
        self._journal = journal_name(name)
        self._lease = lease
        self._whole = Checkpoint()
        self._prepared: dict[CheckpointNumber, Checkpoint] = {}
        self._bytes_since_whole = 0
        self._whole_bytes = 0
        broker.create(self._journal, SCHEMA)

    def load(self, *, last_commit: int | None = None, read_through: int | None = None) -> Resumed:
        """Where to begin: the last commit, and the checkpoints handed out after it.

        A caller with a log of its own says which checkpoint was its last commit, and through which
        one it has to read first; later checkpoints are forgotten.
        """
        stored = _read(self._broker, self._name)
        loaded = stored.resumed()
        self._definition, self._history = stored.definition, stored.history
        self._whole = loaded.committed
        begin = loaded.committed.number if last_commit is None else last_commit
        end = read_through if read_through is not None else last_commit
        _check_there(loaded, self._name, begin, end)
        done = [delta for delta in loaded.prepared if delta.number <= begin]
        open_ = [
            delta
            for delta in loaded.prepared
            if delta.number > begin and (end is None or delta.number <= end)
        ]
        self._prepared = {delta.number: delta for delta in (*done, *open_)}
        if end is not None and len(self._prepared) < len(loaded.prepared):
            self._append([_Row(CheckpointNumber(end), CheckpointRowKind.DROPPED)])
        committed = without_done(merge(loaded.committed, *done))
        return Resumed(committed, tuple(open_), loaded.last_number)

    def keep_definition(self, read: CoordinatedRead) -> None:
        """Store the read's definition; refuse a read whose bindings were moved or removed.

        Bindings are known by their number, so they may be changed and added.
        """
        if self._definition:
            before = _decode_read(self._definition, self._journal)
            names, now = [b.name for b in before.bindings], [b.name for b in read.bindings]
            if now[: len(names)] != names:
                raise UserError(
                    f"coordinated read {read.name} has other bindings than its checkpoints\n"
                    f"  before: {', '.join(names)}\n  now: {', '.join(now)}\n"
                    "  to fix: keep them in this order and add new ones at the end, or "
                    "begin anew under another name"
                )
        text = encode_read(read)
        if text != self._definition:
            self._definition = text
            self._append([_Row(BEGINNING, CheckpointRowKind.DEFINITION, text)])

    def renewed(self, lease: Lease) -> None:
        """Write under a lease that was renewed."""
        self._lease = lease

    def prepare(self, delta: Checkpoint) -> None:
        """Store a checkpoint before it is handed out."""
        fault("reads.prepare.before_store")
        self._append([_prepared_row(delta)])
        fault("reads.prepare.after_store")
        self._note_prepared(delta)

    def check_prepared(self, number: CheckpointNumber) -> None:
        """Refuse the commit of a checkpoint that was not handed out; one that is done may come."""
        if number > self._whole.number and number not in self._prepared:
            prepared = ", ".join(map(str, self._prepared)) or "none"
            raise UserError(
                f"checkpoint {number} of coordinated read {self._name} was not handed out\n"
                f"  handed out and not committed: {prepared}\n"
                "  to fix: commit one of these"
            )

    def commit(
        self,
        number: CheckpointNumber,
        floors: Iterable[Floor],
        *,
        prepare: Checkpoint | None = None,
    ) -> Checkpoint:
        """Note that everything up to a checkpoint was processed; returns it whole.

        With `prepare`, the next checkpoint is stored in the same write. A journal of the floors
        that is gone refuses both with `JournalUnknown`.
        """
        if number <= self._whole.number:
            if prepare is not None:
                self.prepare(prepare)
            return self._whole
        self.check_prepared(number)
        fault("reads.commit.before_store")
        rows = [] if prepare is None else [_prepared_row(prepare)]
        self._append([_Row(number, CheckpointRowKind.COMMITTED), *rows], floors)
        fault("reads.commit.after_store")
        done = [older for older in self._prepared if older <= number]
        whole = merge(self._whole, *(self._prepared.pop(older) for older in done))
        self._whole = self._pruned(without_done(whole))
        if prepare is not None:
            self._note_prepared(prepare)
        self._compact()
        return self._whole

    def _note_prepared(self, delta: Checkpoint) -> None:
        self._history.note(delta.number, self._now_ms())
        self._prepared[delta.number] = delta

    def _compact(self) -> None:
        """Store a whole checkpoint once the deltas are larger than it; remove older rows."""
        if self._bytes_since_whole <= max(self._whole_bytes, _PART_BYTES):
            return
        content = self._whole.to_bytes()
        rows = [
            _Row(BEGINNING, CheckpointRowKind.DEFINITION, self._definition),
            _Row(self._history.last, CheckpointRowKind.GIVEN, self._history.to_bytes()),
            _Row(self._whole.number, CheckpointRowKind.WHOLE, content),
        ]
        rows += map(_prepared_row, self._prepared.values())
        first = self._append(rows)
        fault("reads.compact.after_store")
        self._broker.truncate_before(self._journal, first)
        self._whole_bytes, self._bytes_since_whole = len(content), 0

    def _pruned(self, whole: Checkpoint) -> Checkpoint:
        if self._silent_ms is None:
            return whole
        return without_silent(whole, self._history.number_at(self._now_ms() - self._silent_ms))

    def _append(self, rows: list[_Row], floors: Iterable[Floor] = ()) -> Offset:
        group = group_name(self._name)
        commits = tuple(
            Commit(
                group=group, journal=floor.name, offset=floor.offset, expected=ANYTHING, id=floor.id
            )
            for floor in floors
        )
        batch = _to_batch(rows)
        part = Append(journal=self._journal, rows=batch)
        done = self._broker.publish(Publish(parts=(part,), commits=commits, lease=self._lease))
        self._bytes_since_whole += sum(len(row.content) for row in rows) + 100 * len(rows)
        return done.appended[self._journal].first_offset


def read_checkpoints(broker: Broker, read: str) -> Resumed:
    """The stored checkpoints of a coordinated read, without a session; none if it never ran."""
    return _read(broker, read).resumed()


def check_known(broker: Broker, read: str) -> None:
    """Refuse the name of a coordinated read that never ran."""
    check_text(read, "a coordinated read")
    known = read_names(broker)
    if read not in known:
        raise UserError(
            f"there is no coordinated read {read!r} in this workspace\n"
            f"  found: {existing(read, known)}\n"
            "  to fix: give the name of a coordinated read that ran here"
        )


def read_names(broker: Broker) -> list[str]:
    """The coordinated reads that have run."""
    return [info.name.split("/")[_NAME_PART] for info in broker.list(READS)]


def stored_read(broker: Broker, name: str) -> CoordinatedRead | None:
    """A coordinated read as it was when it last ran; None if it never did."""
    text = _read(broker, name).definition
    return _decode_read(text, journal_name(name)) if text else None


def _decode_read(text: bytes, journal: str) -> CoordinatedRead:
    with documents.decoding(f"journal {journal}", "a coordinated read", _TO_FIX):
        return decode_read(text)


@dataclass(slots=True)
class _Stored:
    """The sum of the rows of the journal."""

    whole: Checkpoint = field(default_factory=Checkpoint)
    prepared: dict[CheckpointNumber, Checkpoint] = field(default_factory=dict)
    number: CheckpointNumber = BEGINNING
    definition: bytes = b""
    history: CheckpointTimes = field(default_factory=CheckpointTimes)

    def take(self, row: _Row) -> None:
        """The next row."""
        self.number = CheckpointNumber(max(self.number, row.number))
        self.history.last = self.number
        match row.kind:
            case CheckpointRowKind.WHOLE:
                self.whole = Checkpoint.from_bytes(row.number, row.content)
                self.prepared = {}
            case CheckpointRowKind.PREPARED:
                self.prepared[row.number] = Checkpoint.from_bytes(row.number, row.content)
            case CheckpointRowKind.COMMITTED:
                done = [older for older in self.prepared if older <= row.number]
                self.whole = merge(self.whole, *(self.prepared.pop(older) for older in done))
            case CheckpointRowKind.DROPPED:
                self.prepared = {n: c for n, c in self.prepared.items() if n <= row.number}
            case CheckpointRowKind.DEFINITION:
                self.definition = row.content
            case CheckpointRowKind.GIVEN:
                self.history = CheckpointTimes.from_bytes(row.content)

    def resumed(self) -> Resumed:
        """Where a session begins."""
        handed = tuple(self.prepared[number] for number in sorted(self.prepared))
        return Resumed(without_done(self.whole), handed, self.number)


def _read(broker: Broker, name: str) -> _Stored:
    stored = _Stored()
    try:
        rows = _read_all(broker, journal_name(name))
    except JournalUnknown:
        return stored
    with documents.decoding(f"journal {journal_name(name)}", "checkpoints", _TO_FIX):
        for row in rows:
            stored.take(row)
    return stored


def _read_all(broker: Broker, journal: str) -> list[_Row]:
    offset = broker.start_offset(journal)
    rows: list[_Row] = []
    parts: list[bytes] = []
    while True:
        fetched = broker.read(journal, offset, rows_max=_READ_ROWS)
        for stored in fetched.rows().to_pylist():
            if stored["part"] != len(parts):
                raise DataLost(
                    f"checkpoint {stored['number']} in {journal} is not whole\n"
                    "  to fix: go back to an earlier checkpoint"
                )
            parts.append(stored["content"])
            if len(parts) == stored["parts"]:
                number = CheckpointNumber(stored["number"])
                rows.append(_Row(number, CheckpointRowKind(stored["kind"]), b"".join(parts)))
                parts = []
        offset = fetched.next_offset
        if offset >= fetched.end_offset:
            return rows


def _prepared_row(delta: Checkpoint) -> _Row:
    return _Row(delta.number, CheckpointRowKind.PREPARED, delta.to_bytes())


def _to_batch(rows: list[_Row]) -> pa.RecordBatch:
    out = []
    for row in rows:
        contents = [
            row.content[begin : begin + _PART_BYTES]
            for begin in range(0, max(1, len(row.content)), _PART_BYTES)
        ]
        out += [
            {
                "number": row.number,
                "kind": row.kind.value,
                "part": part,
                "parts": len(contents),
                "content": content,
            }
            for part, content in enumerate(contents)
        ]
    return pa.RecordBatch.from_pylist(out, schema=SCHEMA)


def _check_there(resumed: Resumed, name: str, begin: int, end: int | None) -> None:
    known = {resumed.committed.number, *(delta.number for delta in resumed.prepared)}
    for number in (begin, end):
        if number is not None and number not in known:
            raise UserError(
                f"coordinated read {name} has no checkpoint {number} to resume from\n"
                f"  committed: {resumed.committed.number}, handed out beyond: "
                f"{', '.join(str(delta.number) for delta in resumed.prepared) or 'none'}\n"
                "  to fix: name one of these, or begin anew under another name"
            )
