"""Parts of pages about paid calls: how many came when, how long they took, and what they raised."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.page import page_texts
from millrace.page.views.look import Values

CALLS_SEEN: Final = 2_000
"""Of how many of the last records and charges these parts are made."""
_BINS: Final = 60


def calls_chart(calls: pa.Table) -> str:
    """How many calls were made in each part of the time that these rows of `calls` span."""
    # What the first record of a unit adds is unknown, if those before it were not read.
    known = calls.filter(pc.is_valid(calls["made"]))
    at, made = known["at"].cast(pa.int64()).to_numpy() / 1e6, known["made"].to_numpy()
    if len(at) < 2 or at.max() <= at.min():  # noqa: PLR2004 - a span
        return ""
    counts, edges = np.histogram(at, bins=_BINS, weights=made)
    wide = edges[1] - edges[0]
    data = [edges[:-1].round(3).tolist(), (counts / wide).round(3).tolist()]
    return page_texts.chart(["calls a second"], data, is_time=True)


def calls_note(calls: pa.Table) -> str:
    """Which records the chart is made of."""
    some = "of the last" if calls.num_rows == CALLS_SEEN else "of all"
    return f"calls a second, {some} {calls.num_rows:,} records"


def latency(charges: pa.Table) -> Values | None:
    """Percentiles of how long calls took; those that a busy provider refused are left out."""
    ended = charges.filter(pc.not_equal(charges["error"], "ProviderBusy"))
    if not ended.num_rows:
        return None
    marks = pc.quantile(ended["seconds"], q=[0.5, 0.9, 0.99, 1.0]).to_pylist()
    names = ("median", "90 %", "99 %", "longest")
    figures = [(name, page_texts.seconds(m), "") for name, m in zip(names, marks, strict=True)]
    return {"calls": ended.num_rows, "figures": figures}


def call_errors(charges: pa.Table) -> list[Values]:
    """What these calls raised, by class, most of them first, each with one text."""
    raised = charges.filter(pc.not_equal(charges["error"], ""))
    kinds = raised.group_by("error", use_threads=False).aggregate(
        [("error", "count"), ("message", "first"), ("at", "max")]
    )
    ordered = kinds.sort_by([("error_count", "descending"), ("error", "ascending")])
    return [
        {
            "kind": row["error"],
            "calls": row["error_count"],
            "last": row["at_max"],
            "message": page_texts.cell(row["message_first"]),
        }
        for row in ordered.to_pylist()
    ]
