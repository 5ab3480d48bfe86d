"""Traces of runs: where the time goes, from the driver over tasks to the owner and paid calls.

Off by default: then a span is one look at a context variable. One trace belongs to a run; whether
it is sampled is decided where the run begins, and what is not sampled costs nothing anywhere.

Invariant: a span says what it is about by ids, and the class of an error. It has no value of a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from millrace.errors import UserError
from millrace.extras import check_extra, missing_modules
from millrace.log_lines import current_ids, log_ids

if TYPE_CHECKING:
    from millrace.metrics.span_sender import SpanSender

TRACE: Final = "trace"
"""The id under which lines of logs, and threads, know the span that they belong to."""
HEADER: Final = "traceparent"
"""The header in which calls between processes carry it, as W3C has it."""
_EXTRA: Final = "otel"
_VARIABLE: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_ENDPOINT: Final = "http://localhost:4318"


@dataclass(frozen=True, slots=True)
class TracedWork:
    """What a task is told: where spans go, and the span that the task is a part of."""

    endpoint: str
    parent: str


@dataclass(slots=True)
class _Tracing:
    """Where this process sends spans."""

    sender: SpanSender | None = None


_tracing: Final = _Tracing()


def send_traces(endpoint: str | None = None, *, sample: float = 1.0) -> None:
    """Send a trace of each run by OpenTelemetry, from this process and the tasks that it starts.

    Args:
        endpoint: The address of a collector that takes OTLP over HTTP. Default:
            `OTEL_EXPORTER_OTLP_ENDPOINT`, or this host's port 4318. What the collector wants to be
            shown stands in `OTEL_EXPORTER_OTLP_HEADERS`, on each host.
        sample: The share of runs that are traced; 0 to send nothing any more.

    Example:
        >>> mr.send_traces("http://collector:4318", sample=0.1)  # doctest: +SKIP
    """
    if not 0 <= sample <= 1:
        raise UserError(
            "send_traces() takes a share of runs\n"
            f"  found: sample={sample!r}\n  to fix: give a number from 0 to 1"
        )
    if sample == 0:
        _send_to(None)
        return
    check_extra(_EXTRA, "mr.send_traces()")
    _send_to(collector_address(endpoint or os.environ.get(_VARIABLE) or _ENDPOINT), sample)


def collector_address(endpoint: str) -> str:
    """The address of a collector, which has no password in it; any other is refused."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        # What is before an @ may be a password, which would go to every task.
        found = endpoint.rpartition("@")[2]
        raise UserError(
            "this is not the address of a collector\n"
            f"  found: {found!r}\n"
            "  to fix: give it as http://collector:4318; a key goes into OTEL_EXPORTER_OTLP_HEADERS"
        )
    return endpoint.rstrip("/")


def _send_to(endpoint: str | None, sample: float = 1.0) -> None:
    before = _tracing.sender
    if before is not None and (before.endpoint, before.sample) == (endpoint, sample):
        return
    _tracing.sender = None
    if before is not None:
        before.close()
    if endpoint is not None:
        from millrace.metrics.span_sender import SpanSender  # noqa: PLC0415 - needs the extra

        _tracing.sender = SpanSender(endpoint, sample)


@contextmanager
def run_span(name: str) -> Iterator[None]:
    """A run: a trace of its own if it is sampled, or a part of the trace that it is in."""
    sender = _tracing.sender
    if sender is None or TRACE in current_ids():
        with span(name):
            yield
        return
    with sender.root(name, current_ids()) as here:
        if here is None:
            yield
            return
        with log_ids(trace=here):
            yield


@contextmanager
def span(name: str, parent: str | None = None) -> Iterator[None]:
    """A part of the run that this thread works for, or of a given one; nothing without a trace."""
    above, sender = parent or current_ids().get(TRACE), _tracing.sender
    if above is None or sender is None:
        yield
        return
    with sender.child(name, str(above), current_ids()) as here, log_ids(trace=here):
        yield


def note_span(name: str, seconds: float, error: str | None = None, **more: str | int) -> None:
    """A part that has just ended, and took so long."""
    above, sender = current_ids().get(TRACE), _tracing.sender
    if above is not None and sender is not None:
        sender.note(name, str(above), {**current_ids(), **more}, seconds, error)


def trace_header() -> Mapping[str, str]:
    """What a call to another process shows; nothing without a trace."""
    above = current_ids().get(TRACE)
    return {} if above is None else {HEADER: str(above)}


def trace_ids() -> dict[str, str | int]:
    """The span of this thread, for threads that work for it on something with other ids."""
    above = current_ids().get(TRACE)
    return {} if above is None else {TRACE: above}


def traced_work() -> TracedWork | None:
    """What tasks of this thread's work are told; None without a trace."""
    above, sender = current_ids().get(TRACE), _tracing.sender
    return None if above is None or sender is None else TracedWork(sender.endpoint, str(above))


def task_ids(work: TracedWork | None) -> dict[str, str | int]:
    """In a task: send its spans; returns the ids of the span that it is a part of.

    A host without the packages sends none.
    """
    if work is None or missing_modules(_EXTRA):
        return {}
    if _tracing.sender is None or _tracing.sender.endpoint != work.endpoint:
        _send_to(work.endpoint)
    return {TRACE: work.parent}


def flush_spans(work: TracedWork | None) -> None:
    """At the end of a task: Spark may end this process at any time."""
    if work is not None and _tracing.sender is not None:
        _tracing.sender.flush()
