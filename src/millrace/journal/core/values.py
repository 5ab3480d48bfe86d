"""The values that go into a broker and come out of it. Pure."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange, UserError
from millrace.journal.core.call_numbers import DecidedCalls
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.number_ranges import Int64
from millrace.journal.core.row_format import Flag, ProducerId, stored_schema, user_rows

Isolation = Literal["committed", "raw"]
Missing = Literal["raise", "tell"]
NO_JOURNAL: Final = JournalId(0)
_NO_COLUMNS: Final = pa.schema([])


class Rows(ABC):
    """Rows of Arrow: a `RecordBatch` or a `Table`."""

    num_rows: int
    nbytes: int


Rows.register(pa.RecordBatch)
Rows.register(pa.Table)


@dataclass(frozen=True, slots=True)
class Anything:
    """For `expected=`: replaces any committed offset.

    Example:
        >>> from millrace.journal.core.values import ANYTHING
        >>> ws.journals.commit("billing", "orders", 2, expected=ANYTHING)
    """


ANYTHING: Final = Anything()


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalInfo:
    """The name, schema and labels of a journal.

    Example:
        >>> info = ws.journals.get("orders")
        >>> info.name, info.schema.names, dict(info.labels)
        ('orders', ['cust_id', 'amount'], {})
    """

    id: JournalId
    name: str
    schema: pa.Schema
    labels: Mapping[str, str]
    created_at_ms: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Journals as of a version; the version changes when one is created or deleted."""

    version: Int64
    journals: tuple[JournalInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedJournals:
    """Which journals were made and deleted after a version of the list."""

    version: Int64
    made: tuple[JournalInfo, ...]
    """Without those that are gone again."""
    gone: tuple[JournalId, ...] | None
    """None: too long ago, and `made` are all journals there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedJournals:
    """Which journals moved after a version: their raw end grew, or rows or all of them went."""

    version: Int64
    """What to ask with next. It means nothing to another life of the broker."""
    journals: tuple[JournalId, ...] | None
    """Each once, in the order of their last moves; None: too long ago, look at all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The offsets of appended rows: `rows` rows from `first_offset` on, without a gap.

    Example:
        >>> done = ws.journals.append("payments", rows)
        >>> done.first_offset, done.rows, done.next_offset
        (0, 3, 3)
    """

    journal: str
    first_offset: Offset
    rows: Int64
    next_offset: Offset
    """The next offset to be given out; above the last row's by more than one behind an ACK."""

    @property
    def last_offset(self) -> Offset:
        """The offset of the last row.

        Example:
            >>> ws.journals.append("payments", rows).last_offset
            2
        """
        assert self.rows, "no rows were appended"
        return Offset(self.first_offset + self.rows - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIn:
    """An open transaction of a producer in one journal."""

    journal: str
    id: JournalId
    begin: Offset
    """Of its first row."""
    highest: Clock
    last_commit: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerProgress:
    """How far a producer came."""

    clock: Clock
    """The highest one that it used in any journal; 0 if it wrote nothing."""
    open: tuple[OpenIn, ...]
    mark: DecidedCalls | None = None
    """What its calls bring from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a transaction published.

    Example:
        >>> with ws.journals.transaction() as t:
        ...     t.append("payments", rows)
        >>> t.result.appended["payments"].rows, t.result.repeated
        (3, False)
    """

    producer: ProducerId
    clock: Clock
    """Of its ACKs, or of its last row if there are none; 0 if it had no rows."""
    appended: Mapping[str, Appended]
    repeated: bool = False
    """Whether this sequence was published before, and this is the answer it got then."""


def appended_to(done: Published, name: str, sequence: int | None) -> Appended:
    """What a publish with rows for one journal appended to it."""
    if name not in done.appended:
        raise UserError(
            f"sequence {sequence} of producer {done.producer} was for other journals\n"
            f"  it was published to: {', '.join(done.appended) or 'none'}\n"
            "  to fix: give each publication the next sequence of its producer"
        )
    return done.appended[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Rows of one journal, in order, and the offset of the next read.

    Example:
        >>> fetched = ws.journals.read("orders", 0, rows_max=2)
        >>> fetched.rows()["amount"].to_pylist(), fetched.next_offset, fetched.end_offset
        ([10, 20], 2, 3)
    """

    journal: str
    id: JournalId
    """Of the journal that was read: another one if it was deleted and made again."""
    schema: pa.Schema
    """Of the user's columns."""
    batches: tuple[pa.RecordBatch, ...]
    """With the system fields of `millrace.journal.core.row_format` before the user's columns."""
    next_offset: Offset
    """Where the next read begins, and what a group commits that has done these rows."""
    end_offset: Offset
    """Up to where there was something to read; `next_offset` is equal to it when caught up."""
    problem: JournalUnknown | OffsetOutOfRange | None = None
    """Why nothing could be read; only of `read_many` with `missing="tell"`."""

    @classmethod
    def failed(
        cls, journal: str, offset: Offset, problem: JournalUnknown | OffsetOutOfRange
    ) -> Fetched:
        """The answer for a journal that is gone, or has no such offset."""
        return cls(
            journal=journal,
            id=NO_JOURNAL,
            schema=_NO_COLUMNS,
            batches=(),
            next_offset=offset,
            end_offset=offset,
            problem=problem,
        )

    def with_batches(self, batches: Iterable[pa.RecordBatch]) -> Fetched:
        """A copy with these rows."""
        return Fetched(
            journal=self.journal,
            id=self.id,
            schema=self.schema,
            batches=tuple(batches),
            next_offset=self.next_offset,
            end_offset=self.end_offset,
            problem=self.problem,
        )

    @property
    def num_rows(self) -> int:
        """The number of rows.

        Example:
            >>> ws.journals.read("orders", 0).num_rows
            3
        """
        return sum(batch.num_rows for batch in self.batches)

    def stored(self) -> pa.Table:
        """The rows with their system fields.

        Example:
            >>> ws.journals.read("orders", 0).stored()["_mr_offset"].to_pylist()
            [0, 1, 2]
        """
        return pa.Table.from_batches(self.batches, stored_schema(self.schema))

    def rows(self) -> pa.Table:
        """The rows in the journal's own schema.

        Example:
            >>> ws.journals.read("orders", 2).rows().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        return user_rows(self.stored(), self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """What a truncation removed.

    Example:
        >>> result = ws.journals.truncate("orders", before=2)
        >>> result.removed, result.start_offset
        (2, 2)
    """

    removed: Int64
    """Committed rows that are gone."""
    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a group in a journal."""

    group: str
    journal: str
    start: Offset
    """The first offset that is not truncated."""
    end: Offset
    """Where committed rows end."""
    committed: Offset | None
    """The group's next offset to read; None if it never committed."""
    backlog: Int64
    """Committed rows that the group has yet to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to do something, until it is renewed, given back or taken by a higher epoch."""

    name: str
    epoch: Int64
    holder: str
    expires_at_ms: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """One record batch message of a file of rows."""

    position: Int64
    bytes: Int64
    rows: Int64
    checksum: str
    """XXH3-64 of these bytes, 16 hexadecimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """Rows in a file that is to be adopted, written by `millrace.journal.row_files`."""

    path: str
    """Absolute; of an open file relative to the folder of the journals."""
    schema: pa.Schema
    """Of the user's columns."""
    bytes: Int64
    """The file's length; of an open file, where the last of these ranges ends."""
    ranges: tuple[FileRange, ...]
    is_open: bool = False
    """Whether its writer adds to it, rows of other journals as well. What is referred to is synced
    already, and each range can be adopted once."""
    is_keyed: bool = False
    """Whether the ranges have record keys and timestamps before the user's columns, which are all
    that they hold otherwise."""
    put_at_ms: Int64 | None = None
    """When it was put into a bucket, by the server's clock, or before; None if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedFile:
    """Rows in an open file that one producer has stamped: their clocks rise by one."""

    id: JournalId
    """Of the journal that is meant."""
    file: SegmentFile
    producer: ProducerId
    first_clock: Clock
    flag: Flag
    """Not ACK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPlace:
    """The Kafka cluster that has the rows of journals."""

    servers: str
    name: str
    """Of the workspace's topics."""
    cluster_id: str
    """Kafka's own: the same address may lead to another cluster elsewhere."""


class Append(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rows for a journal."""

    journal: str
    rows: Rows
    keys: pa.Array | None = None
    timestamps: pa.Array | None = None
    expected: Int64 | None = None
    """The journal's end offset; anything else found is a `Conflict`."""


class Adopt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Rows for a journal that are in files already."""

    journal: str
    files: tuple[SegmentFile, ...]
    expected: Int64 | None = None
    """The journal's end offset; anything else found is a `Conflict`."""
    id: JournalId | None = None
    """Which journal of this name is meant; another one found is a `FormatError`. None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A group's next offset to read in a journal."""

    group: str
    journal: str
    offset: Int64
    expected: Int64 | Anything | None
    """What the group had committed before: an offset, None for nothing, or `ANYTHING`."""
    id: JournalId | None = None
    """Which journal of this name is meant, if one was deleted and made again; None: any of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One transaction: everything of it or nothing."""

    parts: tuple[Append | Adopt, ...] = ()
    commits: tuple[Commit, ...] = ()
    lease: Lease | None = None
    producer: ProducerId | None = None
    """The writer; by default, the broker's own producer."""
    sequence: Int64 | None = None
    """Rises with each publish of the producer; the last one, repeated, gets its first answer."""
