"""Removes large values of a bucket that no row refers to any more.

A bucket has no rename, by which a folder's values are removed beside running workers. So the job
must not run: its lease is held meanwhile, and the leases of its units are fenced.
Invariant: whoever stored a value again before that can publish no row that refers to it.
"""

from __future__ import annotations

import threading
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
from millrace.pipeline.run.run_lease import RunLease
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
    if not old:
        return LargeRemoved(0, 0)
    lease = RunLease(broker, job, config, threading.Event())
    try:
        _fence_units(broker, job)
        paths = pa.array([f"{folder}/{listed.name}" for listed in old], pa.string())
        needed = pc.is_in(
            paths, value_set=referenced_paths(broker, f"{folder}/", config.job_reference_rounds_max)
        ).to_pylist()
        gone = [listed for listed, is_needed in zip(old, needed, strict=True) if not is_needed]
        for begin in range(0, len(gone), _AT_ONCE):
            lease.check()
            some = gone[begin : begin + _AT_ONCE]
            store.calls.delete_all([f"{folder}/{listed.name}" for listed in some])
    finally:
        lease.release()
    return LargeRemoved(len(gone), sum(listed.size for listed in gone))


def _fence_units(broker: Broker, job: str) -> None:
    """End the leases of all workers, also of those that hang: they publish nothing any more."""
    record = RunHistory.open(broker, job).record()
    if record is None:
        return
    journals = journals_of(broker, record)
    for part in record.hops:
        for info in units_of(part, journals):
            broker.fence(hops.unit_lease(job, part.name, info.id))
