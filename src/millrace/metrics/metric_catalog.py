"""All metrics by name, and their description for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.metrics import process_metrics
from millrace.metrics.counts import MetricTally, MetricTimes
from millrace.metrics.metric import Metric
from millrace.metrics.workspace_metrics import WORKSPACE_METRICS

PROCESS_METRICS: Final = {
    counts.metric.name: counts.metric
    for counts in vars(process_metrics).values()
    if isinstance(counts, MetricTally | MetricTimes)
}
METRICS: Final[dict[str, Metric]] = {
    **{metric.name: metric for metric in WORKSPACE_METRICS},
    **PROCESS_METRICS,
}


def metrics_described() -> str:
    """All metrics, in Markdown."""
    return (
        f"## Of a workspace\n\n{_table(WORKSPACE_METRICS)}\n\n"
        f"## Of processes\n\n{_table(PROCESS_METRICS.values())}"
    )


def _table(metrics: Iterable[Metric]) -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.about} |")
    return "\n".join(lines)
