"""What processes count, in a folder of the workspace: so a scraper of it sees all of them.

A process that works for a workspace writes its counts now and then, and removes them when it ends.
Invariant: a report that cannot be written or read is as if it were not there; nothing depends on
it. Nothing is written into a workspace that was deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.errors import MillraceError
from millrace.metrics.counts import counted
from millrace.metrics.metric import Metric, MetricKind, MetricSample
from millrace.wakeup import WakeUp, WorkerThread, still_running

FOLDER: Final = "metrics"
EVERY_S: Final = 10.0
FAR_EVERY_S: Final = 60.0
"""In a bucket, where each write is paid for."""
OLD_S: Final = 300.0
"""A report that was not written for so long is of a process that was killed."""
_REMOVE_S: Final = 86_400.0
_STOP_MS: Final = 2_000
_HOME: Final = "workspace.json"
_TEXT_MAX: Final = 512


class ReportStore(Protocol):
    """Where reports are kept: a folder or a bucket."""

    @property
    def root(self) -> str:
        """The folder or url."""

    @property
    def remote(self) -> bool:
        """Whether it is a bucket."""

    def exists(self, relative: str) -> bool:
        """Whether a file is there."""

    def make_folder(self, relative: str) -> bool:
        """Make a folder."""

    def replace(self, relative: str, data: bytes) -> None:
        """Write a whole file."""

    def read(self, relative: str) -> bytes | None:
        """A whole file; None if it is not there."""

    def names(self, relative: str) -> list[str]:
        """Names in a folder."""

    def remove_file(self, relative: str) -> None:
        """Remove a file if it is there."""


def process_name() -> str:
    """The host and number of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


class _Report:
    """The report of this process in one workspace, which is written by a thread."""

    def __init__(self, store: ReportStore) -> None:
        self._store = store
        self._path = f"{FOLDER}/{os.getpid()}-{secrets.token_hex(8)}.json"
        self._stop = WakeUp()
        self.users = 0
        self.thread = WorkerThread(self._run, "millrace-metrics")

    def end(self) -> None:
        """Write no more, and remove what was written."""
        self._stop.stop()

    def _run(self) -> None:
        every_s = FAR_EVERY_S if self._store.remote else EVERY_S
        has_written = False
        while self._stop.sleep(every_s):
            # A disk that is full, or a store that is away for a while.
            with contextlib.suppress(MillraceError, OSError):
                if not self._store.exists(_HOME):
                    continue
                if not has_written:
                    self._store.make_folder(FOLDER)
                    remove_old(self._store, time.time())
                has_written = True
                self._store.replace(self._path, encode(counted(process_name()), time.time()))
        if has_written:
            with contextlib.suppress(MillraceError, OSError):
                self._store.remove_file(self._path)


_reports: dict[str, _Report] = {}
_lock = threading.Lock()
_served = threading.Event()


def serve_own() -> None:
    """This process serves its counts itself from now on: reports would count them twice."""
    _served.set()


def begin_report(store: ReportStore) -> None:
    """Report the counts of this process in a workspace, until `end_report` is called as often."""
    if _served.is_set():
        return
    with _lock:
        report = _reports.get(store.root)
        if report is None:
            report = _reports[store.root] = _Report(store)
            report.thread.start()
        report.users += 1


def end_report(store: ReportStore) -> None:
    """One user of the report has ended."""
    with _lock:
        report = _reports.get(store.root)
        if report is None:
            return
        report.users -= 1
        if report.users:
            return
        del _reports[store.root]
    report.end()
    still_running([report.thread], _STOP_MS)


@contextmanager
def reporting(store: ReportStore) -> Iterator[None]:
    """Report the counts of this process within the block."""
    begin_report(store)
    try:
        yield
    finally:
        end_report(store)


def encode(samples: list[MetricSample], now_s: float) -> bytes:
    """A report as bytes."""
    rows = [[s.metric, list(s.labels), s.value, list(s.counts)] for s in samples]
    return json.dumps({"at": now_s, "samples": rows}).encode()


def decode(data: bytes, metrics: dict[str, Metric]) -> tuple[float, list[MetricSample]]:
    """When a report was written, and what of it is known here; nothing of what is damaged."""
    try:
        document = json.loads(data)
        at = float(document["at"])
        samples = [_sample(row, metrics) for row in document["samples"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0.0, []
    return at, [sample for sample in samples if sample is not None]


def reported(store: ReportStore, metrics: dict[str, Metric], now_s: float) -> list[MetricSample]:
    """The counts of all processes that live."""
    found: dict[tuple[str, tuple[str, ...]], MetricSample] = {}
    for name in sorted(store.names(FOLDER)):
        at, samples = decode(store.read(f"{FOLDER}/{name}") or b"", metrics)
        if abs(now_s - at) <= OLD_S:
            found |= {(sample.metric, sample.labels): sample for sample in samples}
    return list(found.values())


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process that gave a sign of life."""

    name: str
    """Its host and number."""
    at_us: int
    jobs: tuple[str, ...]
    """Those whose steps it worked on."""


def processes(store: ReportStore, metrics: dict[str, Metric], now_s: float) -> list[SeenProcess]:
    """All processes that report, the last heard of first."""
    found = []
    for file in store.names(FOLDER):
        data = store.read(f"{FOLDER}/{file}") or b""
        at, samples = decode(data, metrics)
        names = {sample.labels[-1] for sample in samples if sample.labels}
        if abs(now_s - at) > OLD_S or len(names) != 1:
            continue
        worked = {
            sample.labels[0]
            for sample in samples
            if metrics[sample.metric].labels[:2] == ("job_name", "step")
        }
        found.append(SeenProcess(names.pop(), round(at * 1e6), tuple(sorted(worked))))
    return sorted(found, key=lambda each: -each.at_us)


def remove_old(store: ReportStore, now_s: float) -> None:
    """Remove reports of processes that were killed long ago."""
    for name in store.names(FOLDER):
        path = f"{FOLDER}/{name}"
        at, _ = decode(store.read(path) or b"", {})
        if abs(now_s - at) > _REMOVE_S:
            store.remove_file(path)


def _sample(row: object, metrics: dict[str, Metric]) -> MetricSample | None:
    match row:
        case [str(name), list(labels), int() | float() as value, list(counts)] if name in metrics:
            metric = metrics[name]
        case _:
            return None
    texts = tuple(label for label in labels if isinstance(label, str) and len(label) <= _TEXT_MAX)
    numbers = tuple(count for count in counts if type(count) is int and count >= 0)
    has_counts = metric.kind in (MetricKind.HISTOGRAM, MetricKind.SUMMARY)
    buckets = len(metric.bounds) + 1 if has_counts else 0
    fits = len(texts) == len(labels) == len(metric.labels)
    fits = fits and len(numbers) == len(counts) == buckets and abs(value) < float("inf")
    return MetricSample(name, texts, value, numbers) if fits else None


def _forget() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have had it
    _lock = threading.Lock()
    _reports.clear()


os.register_at_fork(after_in_child=_forget)
