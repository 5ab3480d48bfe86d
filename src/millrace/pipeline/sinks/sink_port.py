"""What a worker asks of a sink. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.journal.transaction import Transaction


class SinkSettings(Protocol):
    """What a sink needs to know of the worker's surroundings."""

    @property
    def config(self) -> Config:
        """Its limits."""

    @property
    def workspace(self) -> str:
        """The folder of the workspace, in which large values lie."""

    @property
    def scratch(self) -> str:
        """A folder of this host's."""


class Prepared(Protocol):
    """Rows that wait for their transaction."""

    def add_to(self, transaction: Transaction) -> None:
        """Put what has to be recorded into the transaction that commits the rows' offset."""

    def finish(self) -> None:
        """Show the rows, after the transaction, also if only its answer was lost.

        Nothing is shown that the transaction did not record.
        """

    def abandon(self) -> None:
        """Take back what was written, unless it was added to a transaction.

        That one may have gone through without an answer; `recover` tells, later.
        """


class SinkWriter(Protocol):
    """A sink in the hands of one worker."""

    def recover(self, journal: str, journal_id: int) -> None:
        """Finish what dead workers recorded; called when the lease of a unit was taken.

        Files that no row of the record names are removed if they belong to this unit and are old.
        """

    def prepare(
        self,
        journal_id: int,
        batches: Sequence[pa.RecordBatch],
        first: int,
        next: int,  # noqa: A002 - the word of the record
    ) -> Prepared:
        """Write the rows that were made of offsets `first` up to `next` of a journal.

        Nobody sees them yet. There may be none.
        """
