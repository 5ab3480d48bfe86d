"""The option by which a command sends to a collector of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from millrace.extras import check_extra
from millrace.metrics.metric import MetricSample
from millrace.metrics.traces import collector_address, send_traces


def otlp_option(about: str) -> Callable[[Any], Any]:
    """The option, with what the command sends."""
    return click.option("--otlp", metavar="URL", help=about)


def send_spans(endpoint: str | None) -> None:
    """Send spans of the runs of others that are traced, if that was asked for."""
    if endpoint is not None:
        send_traces(endpoint)


@contextmanager
def metrics_sent(
    endpoint: str | None, samples: Callable[[], Iterable[MetricSample]]
) -> Iterator[None]:
    """Send metrics within the block, if that was asked for."""
    if endpoint is None:
        yield
        return
    check_extra("otel", "--otlp")
    from millrace.metrics.metric_sender import MetricSender  # noqa: PLC0415 - needs the extra

    sender = MetricSender(collector_address(endpoint), samples)
    sender.start()
    try:
        yield
    finally:
        sender.close()
