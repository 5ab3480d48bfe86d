"""Sends metrics to a collector by OpenTelemetry, in place of being scraped. Loaded when asked for.

Names, labels and values are those that a scraper gets. Invariant: what cannot be sent is left out,
and the next values are sent as if nothing had happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as SentMetric
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from millrace.errors import MillraceError
from millrace.metrics.metric import Metric, MetricKind, MetricSample
from millrace.metrics.metric_catalog import METRICS
from millrace.metrics.span_sender import about_this_process
from millrace.version import __version__
from millrace.wakeup import WakeUp, WorkerThread, still_running

EVERY_S: Final = 15.0
_SEND_S: Final = 5.0
_STOP_MS: Final = 1_000
_UNITS: Final = {"bytes": "By", "seconds": "s", "dollars": "USD", "ratio": "1"}
_ALL: Final = AggregationTemporality.CUMULATIVE
_LOG: Final = logging.getLogger(__name__)


class MetricSender:
    """Sends what `samples` gives, now and then, from a thread."""

    def __init__(
        self,
        endpoint: str,
        samples: Callable[[], Iterable[MetricSample]],
        every_s: float = EVERY_S,
    ) -> None:
        self._exporter = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=_SEND_S)
        self._samples, self._every_s = samples, every_s
        self._began_ns = time.time_ns()
        self._stop = WakeUp()
        self._thread = WorkerThread(self._run, "millrace-otlp")

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self) -> None:
        """Send no more."""
        self._stop.stop()
        still_running([self._thread], _STOP_MS)

    def send(self) -> bool:
        """Send the values of this moment; whether the collector has them."""
        data = otlp_data(self._samples(), self._began_ns, time.time_ns())
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def _run(self) -> None:
        was_sent = True
        while self._stop.sleep(self._every_s):
            try:
                is_sent = self.send()
            except (MillraceError, OSError) as error:
                _LOG.debug("metrics could not be read: %s", error)
                continue
            if was_sent and not is_sent:
                _LOG.warning("metrics cannot be sent; the next ones are tried")
            was_sent = is_sent
        self._exporter.shutdown()


def otlp_data(samples: Iterable[MetricSample], began_ns: int, now_ns: int) -> MetricsData:
    """Samples as OpenTelemetry has them."""
    known = sorted((s for s in samples if s.metric in METRICS), key=lambda s: s.metric)
    sent = [
        _sent(METRICS[name], list(same), began_ns, now_ns)
        for name, same in groupby(known, key=lambda s: s.metric)
    ]
    scope = ScopeMetrics(InstrumentationScope("millrace", __version__), sent, "")
    return MetricsData([ResourceMetrics(about_this_process(), [scope], "")])


def _sent(
    metric: Metric, samples: Sequence[MetricSample], began_ns: int, now_ns: int
) -> SentMetric:
    points = _numbers(metric, samples, began_ns, now_ns)
    match metric.kind:
        case MetricKind.COUNTER:
            data: Sum | Gauge | Histogram = Sum(list(points), _ALL, is_monotonic=True)
        case MetricKind.GAUGE:
            data = Gauge(list(points))
        case MetricKind.HISTOGRAM | MetricKind.SUMMARY:
            data = Histogram(list(_spreads(metric, samples, began_ns, now_ns)), _ALL)
    return SentMetric(metric.name, metric.about, _UNITS.get(metric.unit, ""), data)


def _numbers(
    metric: Metric, samples: Sequence[MetricSample], began_ns: int, now_ns: int
) -> Iterator[NumberDataPoint]:
    for sample in samples:
        labels = dict(zip(metric.labels, sample.labels, strict=True))
        yield NumberDataPoint(labels, began_ns, now_ns, sample.value)


def _spreads(
    metric: Metric, samples: Sequence[MetricSample], began_ns: int, now_ns: int
) -> Iterator[HistogramDataPoint]:
    """A summary is a histogram of one bucket: its sum and its number of values."""
    for sample in samples:
        labels = dict(zip(metric.labels, sample.labels, strict=True))
        yield HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=began_ns,
            time_unix_nano=now_ns,
            count=sum(sample.counts),
            sum=sample.value,
            bucket_counts=list(sample.counts),
            explicit_bounds=list(metric.bounds),
            min=0.0,
            max=0.0,
        )
