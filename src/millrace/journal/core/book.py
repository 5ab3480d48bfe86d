"""The book: everything a broker knows except the rows, and drafts of changes to it.

A `Book` is a set of tables. `draft()` lays a book on top of it: reads fall through, writes stay
above, until `absorb` takes them over. So a request is decided on a draft, saved, and only then
taken over; one that is refused, or could not be saved, leaves no trace. Pure.

Invariant: the book below a draft is never changed by what is decided on the draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Final, Generic, TypeVar

import pyarrow as pa

from millrace.errors import JournalUnknown
from millrace.journal.core.clocks import BEFORE_ALL, Clock
from millrace.journal.core.committed_rows import RolledBackRange, stable_end
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import ProducerId, Stamp
from millrace.journal.core.sequencing import Sequence
from millrace.journal.core.values import FileRange, JournalInfo, Published, SegmentFile
from millrace.names import existing, shown

K = TypeVar("K")
V = TypeVar("V")

VERSION: Final = "version"
NEXT_JOURNAL: Final = "next_journal"
OWN_PRODUCER: Final = "own_producer"
_LOOKED_AT_MAX: Final = 100
GONE: Final = 2**63 - 1
"""More bytes than a file has."""
_TABLES: Final = (
    "journals",
    "sequences",
    "rolled_back",
    "groups",
    "leases",
    "producers",
    "producer_names",
    "counters",
    "adopted",
)
MOVED: Final = "moved"
"""The topic of threads that wait for any journal to move."""


class RangeKind(IntEnum):
    """What a range of stored rows holds."""

    PLAIN = 0
    """Rows that commit themselves and nothing else."""
    MIXED = 1
    """Rows of transactions or ACKs among them."""
    BARE = 2
    """An adopted file's rows: the user's columns alone; the ledger has the system fields."""
    KEYED = 3
    """The same, with record keys and timestamps before the user's columns."""

    @property
    def is_bare(self) -> bool:
        """Whether the ledger has the offsets and clocks of the rows."""
        return self in (RangeKind.BARE, RangeKind.KEYED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A journal and how far it goes."""

    id: JournalId
    name: str
    schema: pa.Schema
    labels: Mapping[str, str]
    created_at_ms: int
    start: Offset
    """The first offset that is not truncated."""
    end: Offset
    """The next offset to be given out."""
    rows: int
    """Rows ever appended, ACKs not counted."""

    def info(self) -> JournalInfo:
        """What callers see of it."""
        return JournalInfo(
            id=self.id,
            name=self.name,
            schema=self.schema,
            labels=self.labels,
            created_at_ms=self.created_at_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseState:
    """The epoch of a lease, and its holder if there is one."""

    epoch: int
    holder: str | None
    expires_at_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The last clock a producer used in any journal, and its last numbered publish."""

    name: str | None = None
    clock: Clock = BEFORE_ALL
    sequence: int | None = None
    answer: Published | None = None


@dataclass(frozen=True, slots=True)
class FileContent:
    """Rows in an adopted file."""

    path: str
    part: FileRange
    stamp: Stamp
    is_open: bool = False
    """Whether the file may have more rows, of other journals as well."""
    is_keyed: bool = False
    """Whether record keys and timestamps stand before the user's columns."""

    @classmethod
    def of(cls, file: SegmentFile, part: FileRange, stamp: Stamp) -> FileContent:
        """A range of a file."""
        return cls(file.path, part, stamp, file.is_open, file.is_keyed)

    @property
    def kind(self) -> RangeKind:
        """What the range holds."""
        return RangeKind.KEYED if self.is_keyed else RangeKind.BARE


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedContent:
    """Rows that their writer has and stores itself."""

    part: int
    """Which of the parts that were announced."""
    rows: int
    stamp: Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBlock:
    """A range of rows to be stored: its offsets, its rows without ACKs, and those before it."""

    journal: Journal
    first: Offset
    next: Offset
    rows: int
    rows_before: int
    kind: RangeKind
    content: pa.RecordBatch | FileContent | AnnouncedContent


@dataclass(frozen=True, slots=True)
class TouchedKeys:
    """The keys of all tables that a draft has read and changed."""

    read: frozenset[tuple[str, object]]
    changed: frozenset[tuple[str, object]]

    def conflicts(self, other: TouchedKeys) -> bool:
        """Whether the two depend on the order in which they are saved."""
        return not (
            self.changed.isdisjoint(other.changed)
            and self.changed.isdisjoint(other.read)
            and self.read.isdisjoint(other.changed)
        )


class Layer(Generic[K, V]):
    """A table, or changes on top of one; a value of None means that the key is gone."""

    __slots__ = ("below", "own", "read")

    def __init__(self, below: Layer[K, V] | None = None) -> None:
        self.below = below
        self.own: dict[K, V | None] = {}
        self.read: set[K] | None = None
        """The keys that were asked for; None if nobody wants to know."""

    def get(self, key: K) -> V | None:
        """The value as of the changes up to here."""
        if self.read is not None:
            self.read.add(key)
        return self.peek(key)

    def peek(self, key: K) -> V | None:
        """The same, and not noted as read: nothing is decided by what may change of it."""
        layer: Layer[K, V] | None = self
        while layer is not None:
            if key in layer.own:
                return layer.own[key]
            layer = layer.below
        return None

    def put(self, key: K, value: V | None) -> None:
        """Set a value, or take it away."""
        self.own[key] = value

    def absorb(self, above: Layer[K, V]) -> None:
        """Take over the changes of the table above."""
        assert above.below is self
        for key, value in above.own.items():
            if value is None and self.below is None:
                self.own.pop(key, None)
            else:
                self.own[key] = value

    def some_keys(self, count: int) -> list[K]:
        """So many keys of this table and the tables below it, for an error to name."""
        present: list[K] = []
        layer: Layer[K, V] | None = self
        while layer is not None and len(present) < count:
            keys = islice(list(layer.own), count)
            present += [key for key in keys if self.get(key) is not None]
            layer = layer.below
        return present[:count]

    def all(self) -> Iterable[tuple[K, V]]:
        """Everything in a table that has no table below it."""
        assert self.below is None
        return ((key, value) for key, value in list(self.own.items()) if value is not None)


@dataclass(slots=True)
class Book:
    """The tables, and for a draft what it adds to and takes from the stored rows."""

    journals: Layer[str, Journal] = field(default_factory=Layer)
    sequences: Layer[JournalId, Mapping[ProducerId, Sequence]] = field(default_factory=Layer)
    rolled_back: Layer[JournalId, tuple[RolledBackRange, ...]] = field(default_factory=Layer)
    groups: Layer[JournalId, Mapping[str, Offset]] = field(default_factory=Layer)
    leases: Layer[str, LeaseState] = field(default_factory=Layer)
    producers: Layer[ProducerId, ProducerState] = field(default_factory=Layer)
    producer_names: Layer[str, ProducerId] = field(default_factory=Layer)
    counters: Layer[str, int] = field(default_factory=Layer)
    adopted: Layer[str, int] = field(default_factory=Layer)
    """Of each adopted file, how many of its bytes are taken; `GONE` if no more may be."""
    blocks: list[RowBlock] = field(default_factory=list)
    deleted: list[Journal] = field(default_factory=list)
    truncated: list[Journal] = field(default_factory=list)

    def draft(self) -> Book:
        """An empty set of changes on top of this book."""
        return Book(
            journals=Layer(self.journals),
            sequences=Layer(self.sequences),
            rolled_back=Layer(self.rolled_back),
            groups=Layer(self.groups),
            leases=Layer(self.leases),
            producers=Layer(self.producers),
            producer_names=Layer(self.producer_names),
            counters=Layer(self.counters),
            adopted=Layer(self.adopted),
        )

    def note_touched(self) -> None:
        """Note from now on which keys are read."""
        for name in _TABLES:
            getattr(self, name).read = set()

    def touched(self) -> TouchedKeys:
        """What was read since `note_touched`, and changed."""
        tables = [(name, getattr(self, name)) for name in _TABLES]
        return TouchedKeys(
            frozenset((name, key) for name, table in tables for key in table.read or ()),
            frozenset((name, key) for name, table in tables for key in table.own),
        )

    def absorb(self, draft: Book) -> None:
        """Take over the changes of a draft of this book."""
        self.sequences.absorb(draft.sequences)
        self.rolled_back.absorb(draft.rolled_back)
        self.groups.absorb(draft.groups)
        self.leases.absorb(draft.leases)
        self.producers.absorb(draft.producers)
        self.producer_names.absorb(draft.producer_names)
        self.counters.absorb(draft.counters)
        self.adopted.absorb(draft.adopted)
        # Last: a reader that sees the new end finds everything else in place.
        self.journals.absorb(draft.journals)
        if self.journals.below is not None:
            self.blocks += draft.blocks
            self.deleted += draft.deleted
            self.truncated += draft.truncated

    def is_changed(self) -> bool:
        """Whether anything was decided on this draft."""
        layers = (
            self.journals,
            self.sequences,
            self.rolled_back,
            self.groups,
            self.leases,
            self.producers,
            self.producer_names,
            self.counters,
        )
        return any(layer.own for layer in layers)

    def moved(self) -> Iterable[JournalId]:
        """The journals to which this draft adds rows, or from which it takes some, each once."""
        gone = (journal.id for journal in (*self.truncated, *self.deleted))
        return dict.fromkeys([*(block.journal.id for block in self.blocks), *gone])

    def journal(self, name: str, *, is_read: bool = True) -> Journal:
        """The journal of this name; `is_read` is whether it must not grow until this is saved."""
        given: object = name
        look = self.journals.get if is_read else self.journals.peek
        journal = look(name) if isinstance(given, str) else None
        if journal is None:
            raise JournalUnknown(
                f"there is no journal {shown(name)}\n  found: {self._existing(name)}\n"
                "  to fix: create it, or choose one of the names there are (millrace journal ls)"
            )
        return journal

    def _existing(self, name: str) -> str:
        """Some names of journals. Not all are compared: there may be very many, and this often."""
        some = self.journals.some_keys(_LOOKED_AT_MAX)
        return existing(name, some, "no journals") + ("" if len(some) < _LOOKED_AT_MAX else ", ...")

    def count(self, name: str) -> int:
        """A counter's value."""
        return self.counters.get(name) or 0

    def raise_count(self, name: str) -> int:
        """The next value of a counter."""
        value = self.count(name) + 1
        self.counters.put(name, value)
        return value

    def sequence(self, journal: JournalId, producer: ProducerId) -> Sequence:
        """The state of a producer in a journal."""
        return (self.sequences.get(journal) or {}).get(producer, Sequence())

    def put_sequences(self, journal: JournalId, changed: Mapping[ProducerId, Sequence]) -> None:
        """Move producers on in a journal."""
        self.sequences.put(journal, {**(self.sequences.get(journal) or {}), **changed})

    def producer(self, producer: ProducerId) -> ProducerState:
        """What is known of a producer."""
        return self.producers.get(producer) or ProducerState()

    def stable_end(self, journal: Journal) -> Offset:
        """Up to where every row of a journal is committed or rolled back."""
        return stable_end((self.sequences.get(journal.id) or {}).values(), journal.end)

    def min_committed(self, journal: JournalId) -> Offset | None:
        """The lowest offset that a group has committed in a journal."""
        return min((self.groups.get(journal) or {}).values(), default=None)
