"""Whatever rows raise, just those are left out, and no more calls are made than halving needs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.pipeline.worker.worker_kit import QUICK, hop, map_step

from millrace.pipeline.calling.call_styles import call_for
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.hop_rows import HopRows


def at_once(seconds: float) -> None:
    """Waits for nothing."""
    del seconds


@given(
    st.integers(1, 40),
    st.sets(st.integers(0, 39)),
    st.sampled_from(["row", "batch"]),
    st.integers(0, 2),
)
@settings(max_examples=examples(200), deadline=None)
def test_only_the_rows_that_raise_are_left_out(
    count: int,
    poison: set[int],
    kind: Literal["row", "batch"],
    retries: int,
) -> None:
    calls = 0

    def one(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if row["x"] in poison:
            raise ValueError(row["x"])
        return row

    def many(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal calls
        calls += 1
        if poison & set(batch["x"].to_pylist()):
            raise ValueError("one of them")
        return batch

    step = map_step(
        "f",
        many if kind == "batch" else one,
        rows=kind,
        retries=retries,
        on_error="skip",
    )
    batch = pa.record_batch({"x": pa.array(range(count), pa.int64())})
    caller = FunctionCaller.of(hop(step), step, QUICK, workspace="/nowhere", job_id="one")
    found = call_for(caller, HopRows(batch, np.arange(count)), 1, at_once)
    bad = sorted(value for value in poison if value < count)

    assert found.done == count
    assert [failure.place for failure in found.left_out] == bad
    assert found.out.batch["x"].to_pylist() == [v for v in range(count) if v not in poison]
    assert found.calls == calls
    if kind == "batch":
        assert calls <= 1 + (
            retries + 2 * len(bad) * max(1, (count - 1).bit_length()) if bad else 0
        )
    else:
        assert calls == count + retries * len(bad)
