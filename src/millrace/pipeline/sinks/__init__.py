"""The sinks of a job: Parquet files, tables and topics of others, journals of any workspace.

The runner calls `check_sink` before any data is touched. A worker that took the lease of a unit
opens the sink, lets it `recover`, and then, for each range of offsets:

    prepared = writer.prepare(journal_id, batches, first, next)
    with broker.transaction(lease) as t:
        prepared.add_to(t)
        t.commit(hop.group, journal, next, expected=committed)
    prepared.finish()

Whichever process dies in between, the sink has each row of a committed range once, and no others.
"""

from __future__ import annotations

from typing import assert_never

import pyarrow as pa

from millrace.config import Config
from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.pipeline.core.hops import Hop, files_journal
from millrace.pipeline.core.job_model import (
    FunctionSink,
    JournalSink,
    KafkaSink,
    ParquetSink,
    PostgresSink,
    TableSink,
)
from millrace.pipeline.sinks import sink_files, table_record
from millrace.pipeline.sinks.commit_notes import AppendedBefore, CommitNotes
from millrace.pipeline.sinks.journal_sink import JournalSinkWriter, make_journal
from millrace.pipeline.sinks.kafka_sink import KafkaSinkWriter, check_kafka_sink
from millrace.pipeline.sinks.other_journals import OtherJournals, OtherJournalWriter
from millrace.pipeline.sinks.parquet_sink import (
    ParquetWriter,
    check_parquet_sink,
    clear_parquet_sink,
)
from millrace.pipeline.sinks.postgres_sink import PostgresWriter, check_postgres_sink
from millrace.pipeline.sinks.sink_port import (
    Later,
    Prepared,
    SinkSettings,
    SinkWriter,
    at_once,
)
from millrace.pipeline.sinks.table_sink import TableSinkWriter, check_table_sink

__all__ = [
    "OtherJournals",
    "Prepared",
    "SinkSettings",
    "SinkWriter",
    "appended_before",
    "check_sink",
    "clear_sink",
    "file_records",
    "kept_record",
    "noted_journal",
    "open_sink",
]


def open_sink(
    hop: Hop, broker: Broker, settings: SinkSettings, later: Later = at_once
) -> SinkWriter:
    """The writer of a hop's sink, for one worker; `check_sink` was called before.

    `later` does what nothing waits for.
    """
    match hop.sink:
        case ParquetSink():
            return ParquetWriter(hop, broker, settings, later)
        case JournalSink():
            others = settings.others.get(hop.name)
            if others is not None:
                return OtherJournalWriter(hop.sink.journal, others, settings.config)
            return JournalSinkWriter(hop.sink.journal)
        case TableSink():
            return TableSinkWriter(hop, settings)
        case PostgresSink():
            return PostgresWriter(hop, settings)
        case KafkaSink():
            return KafkaSinkWriter(hop, settings)
        case FunctionSink() | None:
            raise AssertionError(f"hop {hop.name} has no sink that rows are written to")
        case _:
            assert_never(hop.sink)


def appended_before(hop: Hop, settings: SinkSettings) -> SinkWriter:
    """Stands for the writer over rows that are in the target of a hop's sink already."""
    return AppendedBefore(CommitNotes.of(hop, settings.run_epoch))


def noted_journal(hop: Hop) -> str | None:
    """The journal in which workers note what they committed to the target of a hop's sink."""
    if not isinstance(hop.sink, PostgresSink | KafkaSink):
        return None
    return table_record.commits_journal(hop.job, hop.name)


def file_records(hop: Hop) -> dict[str, pa.Schema]:
    """The journals in which a hop's sink records its files and its commits."""
    match hop.sink:
        case PostgresSink() | KafkaSink():
            commits = table_record.commits_journal(hop.job, hop.name)
            return {commits: table_record.COMMITS_SCHEMA}
        case ParquetSink():
            return {files_journal(hop.job, hop.name): sink_files.SCHEMA}
        case TableSink():
            return {
                files_journal(hop.job, hop.name): table_record.SCHEMA,
                table_record.commits_journal(hop.job, hop.name): table_record.COMMITS_SCHEMA,
            }
        case _:
            return {}


def kept_record(hop: Hop) -> tuple[str, str] | None:
    """The group that keeps the record of a sink's files whole, and the journal; if it has one."""
    if not isinstance(hop.sink, ParquetSink | TableSink):
        return None
    return sink_files.keeping_group(hop.job, hop.name), files_journal(hop.job, hop.name)


def check_sink(hop: Hop, broker: Broker, config: Config | None = None) -> None:
    """Refuse a sink that cannot take the rows; make its folder, table or journal. Repeatable."""
    match hop.sink:
        case ParquetSink():
            check_parquet_sink(hop, broker, config or Config())
        case JournalSink():
            workspace = hop.sink.workspace
            target = broker if workspace is None else broker_of(workspace.journals)
            make_journal(hop, hop.sink.journal, target)
        case TableSink():
            check_table_sink(hop, broker, config or Config())
        case PostgresSink():
            check_postgres_sink(hop, config or Config())
            _make_records(hop, broker)
        case KafkaSink():
            check_kafka_sink(hop, config or Config())
            _make_records(hop, broker)
        case FunctionSink() | None:
            return
        case _:
            assert_never(hop.sink)


def _make_records(hop: Hop, broker: Broker) -> None:
    for name, schema in file_records(hop).items():
        broker.create(name, schema)


def clear_sink(hop: Hop, broker: Broker) -> None:
    """Remove the files that a sink has recorded, when it is set back to its beginning.

    The caller has fenced the leases of the sink's units. Rows that were appended to a journal or
    committed to a table of the user, or handed to a function, cannot be removed and stay.
    """
    if isinstance(hop.sink, ParquetSink):
        clear_parquet_sink(hop, broker)
