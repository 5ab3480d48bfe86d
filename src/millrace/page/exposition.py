"""Metrics as text for scrapers: in the format of Prometheus, or OpenMetrics where it is asked for.

Invariant: every metric that is written is in the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.core import (
    Metric as Family,
)
from prometheus_client.exposition import choose_encoder

from millrace.metrics.metric import Metric, MetricKind, MetricSample
from millrace.metrics.metric_catalog import METRICS

_PLAIN: Final[dict[MetricKind, type[CounterMetricFamily | GaugeMetricFamily]]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
}


def exposed(samples: Iterable[MetricSample], accept: str) -> tuple[bytes, str]:
    """The text and its media type, as a scraper accepts it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(list(samples)))
    encode, media_type = choose_encoder(accept)
    return encode(registry), media_type


class _Given:
    """Gives samples to prometheus-client."""

    def __init__(self, samples: Sequence[MetricSample]) -> None:
        self._samples = samples

    def describe(self) -> list[Family]:
        """Nothing: names are checked by the catalogue."""
        return []

    def collect(self) -> Iterator[Family]:
        """The families, each with all its samples."""
        by_name: dict[str, list[MetricSample]] = {}
        for sample in self._samples:
            by_name.setdefault(sample.metric, []).append(sample)
        for name in METRICS:
            if name in by_name:
                yield _family(METRICS[name], by_name[name])


def _family(metric: Metric, samples: Sequence[MetricSample]) -> Family:
    about = (metric.name, metric.about)
    match metric.kind:
        case MetricKind.COUNTER | MetricKind.GAUGE:
            plain = _PLAIN[metric.kind](*about, labels=metric.labels)
            for sample in samples:
                plain.add_metric(sample.labels, sample.value)
            return plain
        case MetricKind.SUMMARY:
            sums = SummaryMetricFamily(*about, labels=metric.labels)
            for sample in samples:
                sums.add_metric(sample.labels, sum(sample.counts), sample.value)
            return sums
        case MetricKind.HISTOGRAM:
            buckets = HistogramMetricFamily(*about, labels=metric.labels)
            bounds = [*map(str, metric.bounds), "+Inf"]
            for sample in samples:
                counts = list(zip(bounds, accumulate(sample.counts), strict=True))
                buckets.add_metric(sample.labels, counts, sample.value)
            return buckets
