"""The sinks of a job: Parquet files, tables of others, journals of this or of another workspace.

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

from millrace.config import Config
from millrace.journal.api import broker_of
from millrace.journal.broker import Broker
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import (
    FunctionSink,
    JournalSink,
    ParquetSink,
    PostgresSink,
    TableSink,
)
from millrace.pipeline.sinks.journal_sink import JournalSinkWriter, make_journal
from millrace.pipeline.sinks.other_journals import (
    AppendedBefore,
    OtherJournals,
    OtherJournalWriter,
)
from millrace.pipeline.sinks.parquet_sink import (
    ParquetWriter,
    check_parquet_sink,
    clear_parquet_sink,
)
from millrace.pipeline.sinks.postgres_sink import PostgresWriter, check_postgres_sink
from millrace.pipeline.sinks.sink_port import Prepared, SinkSettings, SinkWriter
from millrace.pipeline.sinks.table_sink import TableSinkWriter, check_table_sink

__all__ = [
    "AppendedBefore",
    "OtherJournals",
    "Prepared",
    "SinkSettings",
    "SinkWriter",
    "check_sink",
    "clear_sink",
    "open_sink",
]


def open_sink(hop: Hop, broker: Broker, settings: SinkSettings) -> SinkWriter:
    """The writer of a hop's sink, for one worker; `check_sink` was called before."""
    match hop.sink:
        case ParquetSink():
            return ParquetWriter(hop, broker, settings)
        case JournalSink():
            others = settings.others.get(hop.name)
            if others is not None:
                return OtherJournalWriter(hop.sink.journal, others, settings.config)
            return JournalSinkWriter(hop.sink.journal)
        case TableSink():
            return TableSinkWriter(hop, settings)
        case PostgresSink():
            return PostgresWriter(hop, settings)
        case FunctionSink() | None:
            raise AssertionError(f"hop {hop.name} has no sink that rows are written to")
        case _:
            assert_never(hop.sink)


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
        case FunctionSink() | None:
            return
        case _:
            assert_never(hop.sink)


def clear_sink(hop: Hop, broker: Broker) -> None:
    """Remove the files that a sink has recorded, when it is set back to its beginning.

    The caller has fenced the leases of the sink's units. Rows that were appended to a journal or
    committed to a table of the user, or handed to a function, cannot be removed and stay.
    """
    if isinstance(hop.sink, ParquetSink):
        clear_parquet_sink(hop, broker)
