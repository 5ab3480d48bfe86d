"""The port of a worker to a sink. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.journal.transaction import Transaction

if TYPE_CHECKING:
    from millrace.pipeline.sinks.other_journals import OtherJournals


Later = Callable[[Callable[[], None]], None]
"""Does some work at once, or beside the next work; an error of it must not matter."""


def at_once(work: Callable[[], None]) -> None:
    """Do it now."""
    work()


class SinkSettings(Protocol):
    """The settings of a worker that a sink needs."""

    @property
    def config(self) -> Config:
        """Its limits."""

    @property
    def workspace(self) -> str:
        """The folder of the workspace, in which large values lie."""

    @property
    def scratch(self) -> str:
        """A folder of this host's."""

    @property
    def run_epoch(self) -> int:
        """The number of the run."""

    @property
    def others(self) -> Mapping[str, OtherJournals]:
        """By sink: the journals of another workspace that it appends to."""

    @property
    def progress(self) -> Mapping[str, str]:
        """By sink: the name of its progress, where that is kept with its rows."""


class Prepared(Protocol):
    """Rows that wait for their transaction."""

    def add_to(self, transaction: Transaction) -> None:
        """Add the rows, or their record, to the transaction that commits the rows' offset."""

    def finish(self) -> None:
        """Make the rows visible after the transaction, also if only its answer was lost.

        Rows that the transaction did not record stay invisible.
        """

    def abandon(self) -> None:
        """Remove the written rows, unless they were added to a transaction.

        That transaction may have been carried out without an answer; `recover` finds out later.
        """


class NothingPrepared:
    """No rows, or rows that are in the target already: nothing is left for the transaction."""

    def add_to(self, transaction: Transaction) -> None:
        """See `Prepared.add_to`."""

    def finish(self) -> None:
        """See `Prepared.finish`."""

    def abandon(self) -> None:
        """See `Prepared.abandon`."""


class SinkWriter(Protocol):
    """The writer of a sink, for one worker."""

    def recover(self, journal: str, journal_id: int) -> int | None:
        """Finish the recorded files of dead workers; called after a unit was leased.

        Files that no row of the record names are removed if they belong to this unit and are old.
        If rows can be in the target before their offset is committed, returns up to which offset
        they are; None otherwise.
        """

    def prepare(
        self,
        journal_id: int,
        batches: Sequence[pa.RecordBatch],
        first: int,
        next: int,  # noqa: A002 - the word of the record
    ) -> Prepared:
        """Write the rows that were made of offsets `first` up to `next` of a journal.

        Readers do not see them yet. There may be no rows.
        """

    def close(self) -> None:
        """Close what it has open, at the end of a turn."""
