"""The workspace of a stream: its journals, owned or joined by the process that reads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.reads.session.session_folder import sessions_folder
from millrace.reads.session_run import SessionWorkspace
from millrace.reads.thread_members import as_threads
from millrace.spark.source.source_options import SourceOptions
from millrace.spark.source.workspace_entry import WorkspaceEntry
from millrace.storage.store import Store
from millrace.transport.agent.agent_launch import own_host
from millrace.transport.owner import broker_address
from millrace.transport.owner.election import own_or_join
from millrace.transport.owner.joined_broker import JoinedBroker

STREAM_PARTS_PER_TRIGGER: Final = 4
"""Journals are read in parts of so much of a limit on a micro-batch."""

STREAM_ROW_BYTES_GUESS: Final = 128
"""What a row takes in a journal, to read in parts that fit a limit on rows."""


@dataclass(frozen=True, slots=True)
class StreamWorkspace:
    """The workspace that a stream reads."""

    store: Store
    token: str
    host: str
    """Listened on."""
    broker: JoinedBroker
    config: Config

    def sessions(self) -> SessionWorkspace:
        """Where its sessions are opened, with members as threads."""
        folder = sessions_folder(self.store, self.store.workspace_id() or "")
        members = as_threads(self.broker, self.config, self._json_keys)
        return SessionWorkspace(self.broker, folder, self.config, members)

    def close(self) -> None:
        """Close the journals."""
        self.broker.close()

    def _json_keys(self, rows: pa.RecordBatch, pointers: Sequence[str]) -> pa.Table:
        """Keys inside JSON documents: few streams have any, and the engine is large."""
        from millrace.engine.json_keys import JsonKeys  # noqa: PLC0415 - as above

        return JsonKeys(self.config)(rows, pointers)


def open_stream_workspace(options: SourceOptions) -> StreamWorkspace:
    """Open the workspace: its journals are owned or joined at the first call."""
    entry, config = WorkspaceEntry.of(options), _config(options)
    host = own_host(os.environ, loopback="SPARK_LOCAL_IP" not in os.environ)
    journals = broker_address.owned_workspace(
        options.path,
        workspace_id=entry.workspace_id,
        token=entry.token,
        kind=entry.kind,
        config=config,
        host=host,
    )
    return StreamWorkspace(entry.store, entry.token, host, own_or_join(journals), config)


def _config(options: SourceOptions) -> Config:
    """With a limit for a batch journals are read in small parts, since no checkpoint is split."""
    config = Config()
    if options.rows_max is None and options.bytes_max is None:
        return config
    fetch_max = config.reads_fetch_bytes_max
    batch_bytes = min(options.bytes_max or fetch_max, fetch_max)
    if options.rows_max is not None:
        batch_bytes = min(batch_bytes, options.rows_max * STREAM_ROW_BYTES_GUESS)
    small = max(1, batch_bytes // STREAM_PARTS_PER_TRIGGER)
    return config.with_options(
        reads_fetch_bytes_max=small,
        reads_fetch_bytes_min=min(small, config.reads_fetch_bytes_min),
    )
