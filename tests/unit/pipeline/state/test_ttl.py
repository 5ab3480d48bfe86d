"""Keys that are not used are forgotten, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    bench,
    came_out,
    defined_hops,
    folded,
    give,
    state_rows,
)
from tests.unit.pipeline.worker.worker_kit import Bench

from millrace.pipeline.define.steps import Step

ROWS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
HOUR_US = 3_600_000_000


def running(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The running sum of each key."""
    sums = dict(zip(states["id"].to_pylist(), states["sum"].to_pylist(), strict=True))
    for row in rows.to_pylist():
        sums[row["id"]] = sums.get(row["id"], 0) + row["v"]
    after = pa.table({"id": [*sums], "sum": [*sums.values()]}, schema=states.schema)
    return after, after


DEFINED: dict[str, Callable[[Step], Step]] = {
    "aggregate": lambda by_id: by_id.aggregate("out", ttl="3h", total="sum(v)"),
    "retractions": lambda by_id: by_id.aggregate(
        "out", emit="retractions", ttl="3h", total="sum(v)"
    ),
    "latest": lambda by_id: by_id.latest("out", ttl="3h"),
    "dedupe": lambda by_id: by_id.dedupe("out", ttl="3h"),
    "stateful": lambda by_id: by_id.stateful(
        "out", running, state="sum bigint", schema="id bigint, sum bigint", ttl="3h", version="1"
    ),
}
HOURS = [(0, [1, 2, 3]), (2, [1]), (4, [1, 4]), (5, [2]), (9, [3])]
"""When rows of which keys come, each with the value 10."""


def run(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = defined_hops(ROWS, lambda source: DEFINED[name](source.key_by("id", partitions=1)))
    job = bench(folder, made, STATE_CONFIG.with_options(job_snapshot_changes=2))
    for hour, keys in HOURS:
        now = hour * HOUR_US
        monkeypatch.setattr("millrace.pipeline.worker.state_works.now_us", lambda now=now: now)
        give(job.broker, pa.table([keys, [10] * len(keys)], schema=ROWS), partitions=1)
        job = job.again()
        job.run()
    return job


@pytest.mark.parametrize(
    ("name", "expected"),
    [("aggregate", 10), ("retractions", 10), ("latest", 10), ("stateful", 10)],
)
def test_a_key_that_was_not_used_begins_anew(
    tmp_path: Path, name: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run(tmp_path, name, monkeypatch)

    # Keys 2 and 3 went at four hours; 1 and 4, and then 2, went at nine.
    assert [[*row.values()] for row in state_rows(job, "out")] == [[3, expected]]


def test_keys_that_are_forgotten_come_out_as_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run(tmp_path, "aggregate", monkeypatch)

    out = came_out(job.broker, "out")
    assert folded(out, ["id"]) == {(3, 10)}
    kinds = [(row["_mr_op"], row["id"], row["total"]) for row in out.to_pylist()]
    deletes = {(key, total) for kind, key, total in kinds if kind == "delete"}
    assert deletes == {(2, 10), (3, 10), (1, 30), (4, 10)}


def test_a_forgotten_key_passes_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = run(tmp_path, "dedupe", monkeypatch)

    # The second row of key 1 is dropped, and does not keep the key.
    assert came_out(job.broker, "out")["id"].to_pylist() == [1, 2, 3, 1, 4, 2, 3]


def test_a_ttl_that_never_runs_out_changes_nothing(tmp_path: Path) -> None:
    results: list[Any] = []
    for number, ttl in enumerate([None, "9d"]):

        def define(source: Step, ttl: str | None = ttl) -> Step:
            return source.key_by("id", partitions=2).aggregate("out", ttl=ttl, n="count(*)")

        job = bench(tmp_path / str(number), defined_hops(ROWS, define))
        give(job.broker, pa.table([[*range(50)] * 4, [*range(200)]], schema=ROWS))
        job.run(workers=2)
        results.append(sorted(map(str, state_rows(job, "out"))))
    assert results[0] == results[1]
