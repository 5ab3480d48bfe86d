"""The workspace of a stream: its journals, owned or joined by the process that reads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from millrace.config import Config
from millrace.operators.json_keys import JsonKeys
from millrace.reads.reading import SessionPlace, as_threads
from millrace.shuffle.store import LocalStore
from millrace.spark.source.entry import Entry
from millrace.spark.source.options import Options
from millrace.transport.journals import kinds
from millrace.transport.journals.electing import own_or_join
from millrace.transport.journals.joined import JoinedBroker
from millrace.transport.launch import own_host

_READS: Final = "reads"


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a stream reads."""

    store: LocalStore
    token: str
    host: str
    """Listened on."""
    broker: JoinedBroker
    config: Config

    def sessions(self) -> SessionPlace:
        """Where its sessions are opened, with members as threads."""
        folder = os.path.join(self.store.root, _READS)
        members = as_threads(self.broker, self.config, JsonKeys(self.config))
        return SessionPlace(self.broker, folder, self.config, members)

    def close(self) -> None:
        """Let go of the journals."""
        self.broker.close()


def open_place(options: Options) -> StreamPlace:
    """Open the workspace: its journals are owned or joined at the first call."""
    entry, config = Entry.of(options), _config(options)
    host = own_host(os.environ, loopback="SPARK_LOCAL_IP" not in os.environ)
    place = kinds.place_of(
        options.path,
        workspace_id=entry.workspace_id,
        token=entry.token,
        kind=entry.kind,
        config=config,
        host=host,
    )
    return StreamPlace(entry.store, entry.token, host, own_or_join(place), config)


def _config(options: Options) -> Config:
    """With a limit for a batch journals are read in small parts, since no checkpoint is split."""
    config = Config()
    if options.rows_max is None and options.bytes_max is None:
        return config
    wanted = min(options.bytes_max or config.reads_fetch_bytes_max, config.reads_fetch_bytes_max)
    if options.rows_max is not None:
        wanted = min(wanted, options.rows_max * config.stream_row_bytes_guess)
    small = max(1, wanted // config.stream_parts_per_trigger)
    return config.with_options(
        reads_fetch_bytes_max=small,
        reads_fetch_bytes_min=min(small, config.reads_fetch_bytes_min),
    )
