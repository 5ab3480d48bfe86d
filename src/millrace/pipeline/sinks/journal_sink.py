"""A sink that appends rows to a journal of the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from millrace.errors import JournalUnknown, SchemaMismatch, WorkspaceUnknown
from millrace.journal.broker import Broker
from millrace.journal.core import row_format
from millrace.journal.transaction import Transaction
from millrace.pipeline.core.hops import Hop


def make_journal(hop: Hop, name: str, broker: Broker) -> None:
    """Make the journal if it is missing; refuse a journal with another schema."""
    schema = row_format.journal_schema(hop.output)
    try:
        there = broker.get(name)
    except (JournalUnknown, WorkspaceUnknown):
        broker.create(name, schema)
        return
    different = row_format.first_difference(schema, there.schema) or _nulls(schema, there.schema)
    if different is not None:
        raise SchemaMismatch(
            f"sink {hop.name!r} of job {hop.job!r} does not fit journal {name!r}\n"
            f"  {different}\n"
            f"  to fix: select the columns {', '.join(there.schema.names)}, or name another journal"
        )


def _nulls(schema: pa.Schema, expected: pa.Schema) -> str | None:
    for field, journal_field in zip(schema, expected, strict=True):
        if field.nullable and not journal_field.nullable:
            return f"field {field.name!r} may be null, and the journal's schema allows no nulls"
    return None


@dataclass(frozen=True, slots=True)
class JournalSinkWriter:
    """Appends rows in the transaction that commits their offset: there is nothing to recover."""

    name: str

    def recover(self, journal: str, journal_id: int) -> int | None:
        """See `SinkWriter.recover`."""
        del journal, journal_id
        return None

    def prepare(
        self,
        journal_id: int,  # noqa: ARG002 - rows do not tell where they come from
        batches: Sequence[pa.RecordBatch],
        first: int,  # noqa: ARG002
        next: int,  # noqa: A002, ARG002
    ) -> _PreparedRows:
        """See `SinkWriter.prepare`."""
        return _PreparedRows(self.name, tuple(batch for batch in batches if batch.num_rows))

    def close(self) -> None:
        """See `SinkWriter.close`."""


@dataclass(frozen=True, slots=True)
class _PreparedRows:
    journal: str
    batches: tuple[pa.RecordBatch, ...]

    def add_to(self, transaction: Transaction) -> None:
        if self.batches:
            transaction.append(self.journal, pa.Table.from_batches(self.batches))

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        pass
