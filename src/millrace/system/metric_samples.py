"""The metrics of a workspace, read from its state at rest.

Invariant: nothing that runs is asked or slowed; what cannot be read is said by a metric of its own,
and the rest is there.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import MillraceError
from millrace.ids import QueryId
from millrace.journal.embedded.segment_reader import LEDGER
from millrace.metrics import process_reports
from millrace.metrics import workspace_metrics as metrics
from millrace.metrics.metric import Metric, MetricSample
from millrace.metrics.metric_catalog import PROCESS_METRICS
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.system.file_totals import FileTotals
from millrace.system.job_metrics import job_samples
from millrace.system.read_metrics import read_samples
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.shuffle_tables import run_state, seen_run
from millrace.transport.owner import owner_endpoint
from millrace.upkeep.journal_folder import FolderJournals
from millrace.version import __version__

REUSE_S: Final = 5.0
"""A scrape soon after another gets the same values: many scrapers cost no more than one."""
GROUPS_MAX: Final = 1_000
_RUNS: Final = 50
_RUN_STATES: Final = ("running", "finished", "died", "damaged")

Samples = Iterator[MetricSample]


def sample(metric: Metric, value: float, *labels: str) -> MetricSample:
    """A value of a metric."""
    return MetricSample(metric.name, labels, value)


@dataclass(slots=True)
class MetricCollector:
    """Reads the metrics of a workspace. May be used by many threads."""

    workspace: RestingWorkspace
    files: FileTotals = field(default_factory=FileTotals)
    _states: dict[int, str] = field(default_factory=dict)
    """Of runs that have ended, which change no more."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: list[MetricSample] = field(default_factory=list)
    _read_at: float = 0.0

    def samples(self) -> list[MetricSample]:
        """All metrics as they are now, or were up to `REUSE_S` ago."""
        with self._lock:
            if not self._last or time.monotonic() - self._read_at > REUSE_S:
                self._last = list(self._read())
                self._read_at = time.monotonic()
            return self._last

    def _read(self) -> Samples:
        began = time.monotonic()
        parts: dict[str, Callable[[], Samples]] = {
            "workspace": self._workspace,
            "files": self._files,
            "runs": self._runs,
            "journals": self._journals,
            "owner": self._owner,
            "jobs": lambda: job_samples(self.workspace),
            "reads": lambda: read_samples(self.workspace),
            "processes": self._processes,
        }
        for name, part in parts.items():
            failed = 0
            try:
                yield from list(part())
            except (MillraceError, OSError):
                failed = 1
            yield sample(metrics.SCRAPE_FAILED, failed, name)
        yield sample(metrics.SCRAPE_SECONDS, time.monotonic() - began)

    def _workspace(self) -> Samples:
        store = self.workspace.store
        yield sample(metrics.INFO, 1, store.root, __version__)
        if isinstance(store, LocalStore):
            disk = os.statvfs(store.root)
            yield sample(metrics.DISK_FREE, disk.f_bavail * disk.f_frsize)
            yield sample(metrics.DISK_SIZE, disk.f_blocks * disk.f_frsize)

    def _files(self) -> Samples:
        counted = self.files.counted(self.workspace.store)
        if counted is None:
            return
        for kind, (files, size) in sorted(counted.kinds.items()):
            yield sample(metrics.FILES, files, kind)
            yield sample(metrics.FILE_BYTES, size, kind)
        yield sample(metrics.FILES_AGE, time.monotonic() - counted.at)

    def _runs(self) -> Samples:
        ids = self.workspace.store.numbers(layout.SHUFFLE)
        yield sample(metrics.RUNS, max(ids, default=0))
        states = list(self.workspace.store.each(self._state, ids[-_RUNS:]))
        for state in _RUN_STATES:
            yield sample(metrics.RUNS_NOW, states.count(state), state)

    def _state(self, number: int) -> str | None:
        known = self._states.get(number)
        if known is not None:
            return known
        query_id = QueryId(number)
        run = seen_run(self.workspace, query_id)
        if run is None:
            return None
        state = run_state(self.workspace, run, query_id)
        if state == "finished":
            self._states[number] = state
        return state

    def _journals(self) -> Samples:
        if not self.workspace.has_journals():
            return
        with self.workspace.pages() as pages:
            totals, (commits, at_ms) = pages.totals(), pages.last_commit()
            groups = pages.group_totals(limit=GROUPS_MAX)
        yield sample(metrics.JOURNALS, totals.journals)
        yield sample(metrics.JOURNAL_ROWS, totals.appended)
        yield sample(metrics.JOURNAL_BYTES, totals.bytes)
        yield sample(metrics.JOURNAL_RANGES, totals.ranges)
        yield sample(metrics.OPEN_TRANSACTIONS, totals.open_transactions)
        for group in groups:
            yield sample(metrics.GROUP_LAG, group.lag, group.group)
            yield sample(metrics.GROUP_JOURNALS, group.journals, group.group)
        yield sample(metrics.LEDGER_COMMITS, commits)
        if at_ms:
            yield sample(metrics.LEDGER_AGE, max(0.0, time.time() - at_ms / 1000))
        there = self.workspace.journals_are_in()
        if isinstance(there, FolderJournals):
            ledger = os.path.join(there.store.path(there.folder), LEDGER)
            yield sample(metrics.LEDGER_BYTES, _size(ledger))
            yield sample(metrics.LEDGER_WAL_BYTES, _size(f"{ledger}-wal"))

    def _processes(self) -> Samples:
        yield from process_reports.reported(self.workspace.store, PROCESS_METRICS, time.time())

    def _owner(self) -> Samples:
        store = self.workspace.store
        endpoint = owner_endpoint.read(store)
        if endpoint is None:
            if owner_endpoint.kept_for(store) is not None:
                yield sample(metrics.OWNER_UP, 0)
            return
        is_here = endpoint.host == socket.gethostname()
        is_gone = is_here and not os.path.exists(f"/proc/{endpoint.pid}")
        yield sample(metrics.OWNER_UP, 0 if is_gone else 1)
        yield sample(metrics.OWNER_EPOCH, endpoint.epoch)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
