"""The messages between session and slices. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.reads.model.checkpoint import ShownClock
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.number_tables import Table
from millrace.reads.model.slice_progress import SliceProgress
from millrace.reads.model.tags import Ints


@dataclass(frozen=True, slots=True)
class Starts(Table):
    """Tags to read, each from an offset on."""

    tag: Ints
    offset: Ints
    until: Ints
    """Not beyond this offset before `Continue`; `NONE`: as far as there is something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReads:
    """Read these journals."""

    starts: Starts
    names: tuple[str, ...]
    """The names of the journals, one for each start."""
    shown: ShownClock = field(default_factory=ShownClock.empty)
    """The shown clocks of these tags: rows up to them are duplicates."""


@dataclass(frozen=True, slots=True)
class StopReads:
    """Read these tags no longer."""

    tags: Ints


@dataclass(frozen=True, slots=True)
class CatalogUpdate:
    """Which journals are read now; sent before anything of it is started."""

    catalog: JournalCatalog


@dataclass(frozen=True, slots=True)
class Continue:
    """All prepared checkpoints were shown again: read beyond them."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Count what this producer has open as rolled back: it will never end it."""

    producer: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A slice's progress; all of its rows are in the queues."""

    progress: SliceProgress


@dataclass(frozen=True, slots=True)
class Pressure:
    """Whether queues push this slice back."""

    is_pushed_back: bool


ToSlice = StartReads | StopReads | CatalogUpdate | Continue | Abandon
ToSession = Reported | Pressure
