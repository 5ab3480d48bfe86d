"""The rows of a state in memory, against a dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    ORDERS,
    TOTALS,
    bench,
    give,
    state_hops,
    state_of,
    totals_step,
)

from millrace.pipeline.restore import state_snapshots
from millrace.pipeline.state import state_table
from millrace.pipeline.state.state_rows import changes_of
from millrace.pipeline.state.state_table import StateTable

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def limit_runs(patch: pytest.MonkeyPatch, limit: int) -> None:
    for module in (state_table, state_snapshots):
        patch.setattr(module, "RUN_BYTES_MAX", limit)


@pytest.mark.parametrize("limit", [1_500, state_table.RUN_BYTES_MAX])
def test_rows_are_those_that_were_added_and_not_taken_out_however_runs_are_merged(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_runs(monkeypatch, limit)
    chance, kept, rows = np.random.default_rng(1), StateTable(SCHEMA), dict[int, tuple[int, str]]()

    for turn in range(150):
        keys = np.unique(chance.integers(0, 200, 8))
        batch = pa.record_batch([keys, [f"{turn}" * 5] * len(keys)], schema=SCHEMA)
        old = [rows[key][0] if key in rows else None for key in keys.tolist()]
        hashes = (keys % 50).astype(np.int32)
        kept.change(changes_of(batch, hashes, kept.next_number, pa.array(old, pa.int64())))
        first = kept.next_number - len(keys)
        rows.update({key: (first + n, f"{turn}" * 5) for n, key in enumerate(keys.tolist())})

    found = {row["k"]: (row["_mr_number"], row["v"]) for row in kept.all().to_pylist()}
    assert found == rows
    some = kept.find(np.array([7], np.int32))
    assert set(some.column("k").to_pylist()) == {key for key in rows if key % 50 == 7}
    sizes = [int(run.rows.nbytes) for run in kept._runs]
    assert len(sizes) < 30
    assert max(sizes) <= limit


def test_a_snapshot_that_is_larger_than_a_run_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_runs(monkeypatch, 1_500)
    job = bench(tmp_path, state_hops(totals_step(ORDERS, ["user"], TOTALS), ORDERS))
    job.config = job.config.with_options(job_snapshot_changes=1)
    users = list(range(300))
    for _ in range(2):
        give(job.broker, pa.table([users, users], schema=ORDERS))
        job.run()
        job = job.again(folder=tmp_path)

    assert state_of(job, "totals") == {(user, 2 * user, 2) for user in users}
