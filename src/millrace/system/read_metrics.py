"""Metrics of coordinated reads, from their journals and from what open sessions say."""

from __future__ import annotations

import time
from collections.abc import Iterator

from millrace.journal.core.clocks import Clock, unix_ns_of
from millrace.journal.core.journal_names import JournalChoice
from millrace.journal.core.row_format import CLOCK
from millrace.journal.embedded.journals_at_rest import RestingJournals
from millrace.metrics import workspace_metrics as metrics
from millrace.metrics.metric import Metric, MetricSample
from millrace.reads.session.checkpoint_store import journal_name
from millrace.system.read_tables import live_status, names_of_reads, session_row
from millrace.system.resting_workspace import RestingWorkspace

_LAST_OFFSETS = 4
"""Rows with an ACK take two offsets."""


def read_samples(workspace: RestingWorkspace) -> Iterator[MetricSample]:
    """The metrics of all coordinated reads."""
    for name in names_of_reads(workspace):
        with workspace.journals(JournalChoice(names=(journal_name(name),))) as journals:
            row = session_row(workspace, journals, name)
            age_s = _noted_ago_s(journals, journal_name(name))

        def of(metric: Metric, value: float, *more: str, read: str = name) -> MetricSample:
            return MetricSample(metric.name, (read, *more), value)

        yield of(metrics.READ_UP, float(row["open"]))
        yield of(metrics.READ_CHECKPOINT, row["committed"])
        yield of(metrics.READ_PREPARED, row["prepared"])
        if age_s is not None:
            yield of(metrics.READ_CHECKPOINT_AGE, age_s)
        live = live_status(workspace, name)
        if live is None:
            continue
        yield of(metrics.READ_HEARD, live["age_ms"] / 1000)
        for member, size in enumerate(live["disk_bytes"]):
            yield of(metrics.READ_QUEUE, size, str(member))
        yield of(metrics.READ_QUEUE_LIMIT, workspace.config.reads_disk_bytes_max)
        waiting = [hint["age_ms"] + live["age_ms"] for hint in live["waiting"]]
        yield of(metrics.READ_HINTS, len(waiting))
        yield of(metrics.READ_HINT_AGE, max(waiting, default=0) / 1000)
        yield of(metrics.READ_OPEN, len(live["long_open"]))


def _noted_ago_s(journals: RestingJournals, name: str) -> float | None:
    """How long ago the last row of a journal of checkpoints was written."""
    end, start = int(journals.end_offset(name)), int(journals.start_offset(name))
    fetched = journals.read(name, max(start, end - _LAST_OFFSETS))
    if not fetched.num_rows:
        return None
    clock = fetched.stored()[CLOCK].to_pylist()[-1]
    return max(0.0, time.time() - unix_ns_of(Clock(clock)) / 1e9)
