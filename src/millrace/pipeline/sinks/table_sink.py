"""A sink whose rows are files of a table: workers write and record them, the driver commits them.

A file is written and synced, and one transaction records it with the offset of its rows. No reader
of the table sees it then. The driver commits recorded files in the order of the record; the commit
says in the table itself how far in the record it went. So each row of a recorded file is in the
table once, whoever dies when, and rows that were not recorded never are.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import pyarrow as pa

from millrace.config import Config
from millrace.faults import fault
from millrace.identity.schemas import conform, plain_schema
from millrace.journal.broker import Broker
from millrace.journal.transaction import Transaction
from millrace.pipeline.core.hops import Hop, files_journal
from millrace.pipeline.core.job_model import TableSink
from millrace.pipeline.large import large_values as large
from millrace.pipeline.sinks import sink_files, table_record
from millrace.pipeline.sinks.row_groups import group_rows, row_groups
from millrace.pipeline.sinks.sink_port import NothingPrepared, Prepared, SinkSettings
from millrace.tables.last_rows import last_of_keys
from millrace.tables.table_port import TableFile, TableFileWriter


def check_table_sink(hop: Hop, broker: Broker, config: Config) -> None:
    """Refuse rows that the table cannot take; make the table and the record of files."""
    schema = large.loaded_schema(plain_schema(hop.output))
    sink_of(hop).target.check(schema, config, who=_who(hop.job, hop.name))
    broker.create(files_journal(hop.job, hop.name), table_record.SCHEMA)
    broker.create(table_record.commits_journal(hop.job, hop.name), table_record.COMMITS_SCHEMA)


def sink_of(hop: Hop) -> TableSink:
    """The table sink of a hop that has one."""
    assert isinstance(hop.sink, TableSink)
    return hop.sink


class TableSinkWriter:
    """The writer of a table sink, for one worker."""

    def __init__(self, hop: Hop, settings: SinkSettings) -> None:
        """Does not read or write any file yet."""
        self._hop, self._settings = hop, settings
        self._journal = files_journal(hop.job, hop.name)
        self._stored = plain_schema(hop.output)
        self._schema = large.loaded_schema(self._stored)
        self._writer: TableFileWriter | None = None

    def recover(self, journal: str, journal_id: int) -> int | None:
        """See `SinkWriter.recover`: recorded files are the driver's."""
        del journal, journal_id
        return None

    def prepare(
        self,
        journal_id: int,
        batches: Sequence[pa.RecordBatch],
        first: int,
        next: int,  # noqa: A002 - the word of the record
    ) -> Prepared:
        """See `SinkWriter.prepare`."""
        who = _who(self._hop.job, self._hop.name)
        rows = [conform(batch, self._stored, where=who) for batch in batches if batch.num_rows]
        if not rows:
            return NothingPrepared()
        if self._writer is None:
            target = sink_of(self._hop).target
            self._writer = target.writer(self._schema, self._settings.config, who=who)
        rows = last_of_keys(rows, sink_of(self._hop).target.keys)
        fault("sink.table.before_write")
        name = f"{sink_files.file_name(journal_id, first, next)}-{secrets.token_hex(8)}"
        files = self._writer.write(self._groups(rows), name)
        fault("sink.table.after_write")
        record = table_record.file_rows(files, journal_id=journal_id, first=first, next_=next)
        return _TableFiles(self._writer, self._journal, files, record)

    def close(self) -> None:
        """See `SinkWriter.close`."""

    def _groups(self, rows: Sequence[pa.RecordBatch]) -> Iterator[pa.Table]:
        for group in row_groups(rows, self._settings.config.parquet_row_group_bytes):
            if group_rows(group):
                loaded = large.fetch_all(group, self._settings.workspace)
                yield pa.Table.from_batches(loaded, self._schema)


class _TableFiles:
    """Files that wait for the transaction that records them."""

    def __init__(
        self,
        writer: TableFileWriter,
        journal: str,
        files: Sequence[TableFile],
        record: pa.RecordBatch,
    ) -> None:
        self._writer, self._journal = writer, journal
        self._files, self._record = files, record
        self._is_added = False

    def add_to(self, transaction: Transaction) -> None:
        self._is_added = True
        transaction.append(self._journal, self._record)

    def finish(self) -> None:
        pass

    def abandon(self) -> None:
        if not self._is_added:
            self._writer.remove(self._files)


def _who(job: str, sink: str) -> str:
    return f"sink {sink!r} of job {job!r}"
