"""What a commit does with the snapshots that a table had before.

pyiceberg copies all of them three times in each commit. Snapshots are values that nobody changes:
within `sharing_snapshots` the copies share them, which halves a commit to a table with hundreds of
them. Invariant: outside of it pyiceberg copies as it always does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

EXPIRED_MAX: Final = 200
"""Snapshots that one commit removes: a long history goes in several, as pyiceberg needs n * m."""
_is_sharing: Final = ContextVar("is_sharing", default=False)


@contextmanager
def sharing_snapshots() -> Iterator[None]:
    """Let copies of a table's metadata share the table's snapshots."""
    token = _is_sharing.set(True)
    try:
        yield
    finally:
        _is_sharing.reset(token)


def _copied(self: BaseModel, memo: dict[int, Any] | None = None) -> BaseModel:
    return self if _is_sharing.get(False) else BaseModel.__deepcopy__(self, memo)


for _kind in (Snapshot, SnapshotLogEntry):
    _kind.__deepcopy__ = _copied  # type: ignore[method-assign, assignment]


def expired_snapshots(metadata: TableMetadata, keep: int) -> list[int]:
    """The oldest snapshots of the branch `main` beyond those to keep, without tagged ones."""
    protected = {ref.snapshot_id for ref in metadata.refs.values()}
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    history: list[int] = []
    at = metadata.current_snapshot_id
    while at is not None and at in by_id:
        history.append(at)
        at = by_id[at].parent_snapshot_id
    old = [number for number in history[keep:] if number not in protected]
    return old[-EXPIRED_MAX:]
