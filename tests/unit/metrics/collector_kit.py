"""A collector of OpenTelemetry that remembers what it was sent."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from millrace.wakeup import WorkerThread


@dataclass(frozen=True, slots=True)
class SentSpan:
    name: str
    id: str
    parent: str
    trace: str
    about: dict[str, Any]
    error: str
    process: int


@dataclass(slots=True)
class Collector:
    url: str
    bodies: list[tuple[str, bytes]] = field(default_factory=list)

    def spans(self) -> list[SentSpan]:
        """All spans, in the order in which they were sent."""
        found = []
        for path, body in self.bodies:
            if path != "/v1/traces":
                continue
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                process = values(resource.resource.attributes)["process.pid"]
                found += [
                    SentSpan(
                        name=span.name,
                        id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        trace=span.trace_id.hex(),
                        about=values(span.attributes),
                        error=span.status.message,
                        process=process,
                    )
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]
        return found

    def metrics(self) -> dict[str, Any]:
        """The metrics that were sent last, by name."""
        body = [body for path, body in self.bodies if path == "/v1/metrics"][-1]
        (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        return {metric.name: metric for metric in resource.scope_metrics[0].metrics}


def values(attributes: Any) -> dict[str, Any]:  # noqa: ANN401 - of protobuf
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    bodies: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_zipped = self.headers.get("content-encoding") == "gzip"
            bodies.append((self.path, gzip.decompress(body) if is_zipped else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = WorkerThread(server.serve_forever, "collector")
    thread.start()
    try:
        yield Collector(f"http://127.0.0.1:{server.server_port}", bodies)
    finally:
        server.shutdown()
        server.server_close()
        thread.ended.wait(30)
