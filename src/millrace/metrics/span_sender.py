"""Sends spans to a collector, by OpenTelemetry's own SDK. Loaded when traces are on.

Invariant: whatever the collector does, work goes on: spans are sent by a thread, which gives up
after `_SEND_S`, and are dropped when too many wait.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from millrace.version import __version__

_SEND_S: Final = 3.0
_PARENT: Final = "traceparent"
_W3C: Final = TraceContextTextMapPropagator()

Ids = Mapping[str, str | int]


class SpanSender:
    """Sends the spans of this process. May be used by many threads."""

    def __init__(self, endpoint: str, sample: float) -> None:
        """`sample` is the share of runs that begin here; what others began is decided there."""
        self.endpoint, self.sample = endpoint, sample
        exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_SEND_S)
        # A provider of the user's own is left alone.
        sampler = ParentBased(TraceIdRatioBased(sample))
        self._provider = TracerProvider(resource=about_this_process(), sampler=sampler)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("millrace", __version__)

    @contextmanager
    def root(self, name: str, ids: Ids) -> Iterator[str | None]:
        """The first span of a run: below the user's own if there is one; None if not sampled."""
        begun = self._tracer.start_span(name, attributes=_attributes(ids))
        if not begun.is_recording():
            yield None
            return
        with self._ending(begun) as here:
            yield here

    @contextmanager
    def child(self, name: str, parent: str, ids: Ids) -> Iterator[str]:
        """A span below another one, of this process or another."""
        above = _W3C.extract({_PARENT: parent})
        begun = self._tracer.start_span(name, above, attributes=_attributes(ids))
        with self._ending(begun) as here:
            yield here

    def note(self, name: str, parent: str, ids: Ids, seconds: float, error: str | None) -> None:
        """A span that has just ended."""
        now = time.time_ns()
        begun = self._tracer.start_span(
            name,
            _W3C.extract({_PARENT: parent}),
            attributes=_attributes(ids),
            start_time=now - round(seconds * 1e9),
        )
        if error is not None:
            begun.set_status(Status(StatusCode.ERROR, error))
        begun.end(now)

    def flush(self) -> None:
        """Send what has not been sent, for a while."""
        self._provider.force_flush(round(_SEND_S * 1000))

    def close(self) -> None:
        """Send the rest, and no more."""
        self.flush()
        self._provider.shutdown()

    @contextmanager
    def _ending(self, begun: Span) -> Iterator[str]:
        carried: dict[str, str] = {}
        _W3C.inject(carried, trace.set_span_in_context(begun))
        try:
            yield carried[_PARENT]
        except BaseException as error:
            # Its text may have values of rows.
            begun.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            begun.end()


def about_this_process() -> Resource:
    """What a collector is told of the process that sends."""
    return Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", "millrace"),
            "service.version": __version__,
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
    )


def _attributes(ids: Ids) -> dict[str, str | int]:
    return {f"millrace.{name}": value for name, value in ids.items() if name != "trace"}
