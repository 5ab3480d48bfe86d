"""Removes large values of a bucket that no row refers to any more.

A bucket has no rename, by which a folder's values are removed beside running workers. So the job
must not run: its lease is held meanwhile, and the leases of its units are fenced. A run that begins
then waits for the lease, and does not fail.
Invariant: whoever stored a value again before that can publish no row that refers to it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.config import Config
from millrace.durations import ms
from millrace.journal.broker import Broker
from millrace.pipeline.core import hops
from millrace.pipeline.large import large_values as large
from millrace.pipeline.large.large_cleanup import LargeRemoved, referenced_paths, remove_unneeded
from millrace.pipeline.report.job_counts import journals_of, units_of
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run import lease_holders
from millrace.pipeline.run.run_lease import RunLease
from millrace.storage.objects.object_calls import ListedObject
from millrace.storage.objects.object_store import ObjectStore
from millrace.storage.workspace_home import store_at

_AT_ONCE: Final = 1000
"""So many are removed between two looks at the lease."""


def remove_large(broker: Broker, workspace: str, job: str, config: Config) -> LargeRemoved:
    """Remove the values of a job that no row refers to and that are not new.

    Raises:
        LeaseHeld: the workspace is in a bucket, and the job runs.
    """
    store = store_at(workspace, config)
    if not isinstance(store, ObjectStore):
        return remove_unneeded(broker, workspace, job, None, config)
    before_ms = store.now_ms() - ms(config.unfinished_grace)
    folder = f"{large.ROOT}/{job}"
    old = [
        listed
        for listed in store.calls.list(folder, deep=True)
        if listed.changed_at_ms is not None and listed.changed_at_ms < before_ms
    ]
    # A first look without the lease: it does not delay a run if all values are needed.
    gone = _unneeded(broker, folder, old, config)
    if not gone:
        return LargeRemoved(0, 0)
    lease = RunLease(broker, job, config, threading.Event(), doing=lease_holders.REMOVAL)
    try:
        _fence_units(broker, job)
        gone = _unneeded(broker, folder, gone, config)
        for begin in range(0, len(gone), _AT_ONCE):
            lease.check()
            some = gone[begin : begin + _AT_ONCE]
            store.calls.delete_all([f"{folder}/{listed.name}" for listed in some])
    finally:
        lease.release()
    return LargeRemoved(len(gone), sum(listed.size for listed in gone))


def _unneeded(
    broker: Broker, folder: str, listed: Sequence[ListedObject], config: Config
) -> list[ListedObject]:
    """The values among these that no row in any journal refers to."""
    if not listed:
        return []
    paths = pa.array([f"{folder}/{value.name}" for value in listed], pa.string())
    referenced = referenced_paths(broker, f"{folder}/", config.job_reference_rounds_max)
    needed = pc.is_in(paths, value_set=referenced).to_pylist()
    return [value for value, is_needed in zip(listed, needed, strict=True) if not is_needed]


def _fence_units(broker: Broker, job: str) -> None:
    """End the leases of all workers, also of those that hang: they publish nothing any more."""
    record = RunHistory.open(broker, job).record()
    if record is None:
        return
    journals = journals_of(broker, record)
    for part in record.hops:
        for info in units_of(part, journals):
            broker.fence(hops.unit_lease(job, part.name, info.id))
