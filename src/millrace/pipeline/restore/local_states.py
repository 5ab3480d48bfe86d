"""States that a worker process keeps between its turns, and how they are brought up to date.

A turn takes the state of its unit and gives it back with the offset up to which it has the
published changes. Another worker may have gone on in between: then the changes since are carried
out. Invariant: what is kept here was published; a state whose turn failed is not given back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import DataLost, MillraceError, OffsetOutOfRange, Retriable
from millrace.journal.broker import Broker
from millrace.pipeline.journal_tail import last_row
from millrace.pipeline.owner_retries import patiently
from millrace.pipeline.restore.state_snapshots import last_snapshot, load_snapshot
from millrace.pipeline.state.skipped_rows import SkippedRows
from millrace.pipeline.state.state_table import StateTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlace:
    """Where the state of one unit is kept."""

    workspace: str
    job_id: str
    changes: str
    """The journal of its changes."""
    snapshots: str
    """The record of its snapshots."""
    skipped: str = ""
    """The journal with the number of rows that were left out; empty for readers of the state."""
    size: str = ""
    """The journal with its size; empty for readers of the state."""
    schema: pa.Schema


@dataclass(slots=True, kw_only=True)
class LocalState:
    """The state of a unit, and up to where it has the changes."""

    kept: StateTable
    journal_id: int
    """The journal of changes; it is another one after a reset."""
    at: int
    """It has the changes below this offset."""
    changed: int
    """Changes since the last snapshot."""
    read_to: dict[str, int] = field(default_factory=dict)
    """The committed offsets that go with it, by the journals of its units."""
    skipped: SkippedRows | None = None
    """The totals of rows that were left out; None: to be read."""
    rows_noted: int | None = None
    """The rows that it had when its size was last published; None: not by this process."""
    totals: int = 0
    """Totals and sizes that this process published since their journals were last cut."""


STATE_READS_MAX: Final = 8
"""How often a reader begins again whose state was written anew meanwhile."""

_Key = tuple[str, str, str]
_shelf: OrderedDict[_Key, LocalState] = OrderedDict()
_lock: Final = threading.Lock()


def take_state(
    broker: Broker, place: StatePlace, config: Config, *, journal: str, read_to: int | None
) -> LocalState:
    """The state of a unit as it was published; `read_to` is its committed offset in its journal.

    The caller holds the unit's lease, so no change comes while this reads.
    """
    with _lock:
        local = _shelf.pop(_key(place), None)

    def take() -> LocalState:
        state = _current(broker, place, local, {journal: read_to})
        if place.skipped and state.skipped is None:
            state.skipped = SkippedRows.from_row(last_row(broker, place.skipped)[0])
        return state

    return patiently(take, config, Retriable)


def give_back(place: StatePlace, state: LocalState, config: Config) -> None:
    """Keep a state for the next turn of this process; the least recently used go if memory ends."""
    with _lock:
        _shelf[_key(place)] = state
        while len(_shelf) > 1 and sum(s.kept.nbytes for s in _shelf.values()) > (
            config.job_state_bytes
        ):
            _shelf.popitem(last=False)


def read_state(broker: Broker, place: StatePlace) -> StateTable:
    """The state as it is published now, for readers that hold no lease.

    Its writer may remove the changes that a new snapshot has while this reads: what was read before
    is whole only if the journal still has all that came behind it.
    """
    error: MillraceError | None = None
    for _ in range(STATE_READS_MAX):
        try:
            local = _from_snapshot(broker, place, int(broker.get(place.changes).id))
            begun_at = local.at
            _catch_up(broker, place.changes, local)
            if int(broker.start_offset(place.changes)) <= begun_at:
                return local.kept
        except (OffsetOutOfRange, DataLost) as gone:
            error = gone
    raise (
        Retriable(
            f"the state in {place.changes!r} cannot be read: it is written anew all the time\n"
            f"  found: {STATE_READS_MAX} snapshots, each written while the one before was read\n"
            "  to fix: raise Config.job_snapshot_changes, or read again later"
        )
        if error is None
        else error
    )


def _key(place: StatePlace) -> _Key:
    return place.workspace, place.job_id, place.changes


def _current(
    broker: Broker, place: StatePlace, local: LocalState | None, read_to: Mapping[str, int | None]
) -> LocalState:
    journal_id = int(broker.get(place.changes).id)
    end = int(broker.end_offset(place.changes, isolation="raw"))
    start = int(broker.start_offset(place.changes))
    if local is not None and (
        local.journal_id != journal_id
        or not start <= local.at <= end
        or (local.at == end and any(local.read_to.get(j, at) != at for j, at in read_to.items()))
    ):
        local = None
    if local is None:
        local = _from_snapshot(broker, place, journal_id)
    _catch_up(broker, place.changes, local)
    return local


def _from_snapshot(broker: Broker, place: StatePlace, journal_id: int) -> LocalState:
    kept = StateTable(place.schema)
    at = int(broker.start_offset(place.changes))  # Before the record: that may be written now.
    record = last_snapshot(broker, place.snapshots)
    if record is not None:
        load_snapshot(kept, record, place.workspace)
        at = record.offset
    return LocalState(kept=kept, journal_id=journal_id, at=at, changed=0)


def _catch_up(broker: Broker, journal: str, local: LocalState) -> None:
    while True:
        fetched = broker.read(journal, local.at)
        if fetched.num_rows:
            local.read_to.clear()  # Another worker went on with its units.
            local.skipped = local.rows_noted = None
            for batch in fetched.rows().combine_chunks().to_batches():
                local.kept.change(batch)
                local.changed += batch.num_rows
        if fetched.next_offset == local.at:
            return
        local.at = int(fetched.next_offset)
