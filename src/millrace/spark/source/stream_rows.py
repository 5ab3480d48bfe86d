"""Rows of coordinated reads in the columns that a streaming query was planned with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.errors import SchemaMismatch, UserError
from millrace.journal.broker import Broker
from millrace.journal.core.row_format import CLOCK, OFFSET, PRODUCER
from millrace.journal.core.values import JournalInfo
from millrace.reads.model.column_checks import ColumnChecks
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.journal_catalog import read_under
from millrace.reads.model.tags import TAG, journals_of

JOURNAL: Final = "_mr_journal"
SYSTEM: Final = (
    pa.field(JOURNAL, pa.string()),
    pa.field(OFFSET, pa.int64()),
    pa.field(PRODUCER, pa.int64()),
    pa.field(CLOCK, pa.int64()),
)


def journals_for(
    read: CoordinatedRead, infos: Iterable[JournalInfo]
) -> list[tuple[int, JournalInfo]]:
    """The journals that a coordinated read reads, each with the number of its binding."""
    journals = tuple(infos)
    return [
        (number, journal)
        for number, binding in enumerate(read.bindings)
        for journal in read_under(binding, journals)
    ]


def columns_of(read: CoordinatedRead, broker: Broker) -> pa.Schema:
    """The columns of all bindings, from the existing journals, then Millrace's own."""
    journals = journals_for(read, broker.watch(-1).journals)
    if not journals:
        prefixes = ", ".join(repr(binding.prefix) for binding in read.bindings)
        raise UserError(
            f"coordinated read {read.name} has no journal yet, so its columns are not known\n"
            f"  looked for: {prefixes}\n  to fix: create the journals first, or give their columns "
            "with .schema(...)"
        )
    columns, fields = ColumnChecks(), dict[str, pa.Field]()
    for number, journal in journals:
        columns.check(read.bindings[number], journal)
        for field in journal.schema:
            # Another binding may lack it.
            fields.setdefault(field.name, pa.field(field.name, field.type))
    return pa.schema([*fields.values(), *SYSTEM])


class ColumnShaping:
    """Brings batches into the columns of a query, and names their journals."""

    def __init__(self, schema: pa.Schema, broker: Broker) -> None:
        self._schema = schema
        self._broker = broker
        self._names: dict[int, str] = {}

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch as the query wants it."""
        extra = set(batch.schema.names) - set(self._schema.names) - {TAG, OFFSET, PRODUCER, CLOCK}
        if extra:
            raise SchemaMismatch(
                f"column {min(extra)!r} is not among the columns of the query\n  a journal with "
                "it was made after the query began\n  to fix: start the query again"
            )
        arrays = [self._column(batch, field) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name == JOURNAL:
            return self._journals(batch.column(TAG)).cast(field.type)
        if field.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(field.name)
        # Clocks are below 2^63 for a thousand years; others' keep their bits.
        column = column.view(pa.int64()) if field.name == CLOCK else column
        return column if column.type == field.type else column.cast(field.type)

    def _journals(self, tags: pa.Array) -> pa.Array:
        ids = journals_of(tags.to_numpy(zero_copy_only=False).astype(np.int64))
        known, places = np.unique(ids, return_inverse=True)
        if not self._names.keys() >= set(known.tolist()):
            self._names |= {journal.id: journal.name for journal in self._broker.watch(-1).journals}
        names = pa.array([self._names.get(id_) for id_ in known.tolist()], pa.string())
        return names.take(pa.array(places))
