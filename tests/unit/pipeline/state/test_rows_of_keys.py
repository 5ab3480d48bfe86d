"""The last row, the first row and functions over keys; DuckDB is the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    asked,
    bench,
    came_out,
    defined_hops,
    folded,
    give,
    state_of,
)
from tests.unit.pipeline.worker.worker_kit import happened

from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.define.steps import Step

EVENTS = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("v", pa.string())])
SMALL = STATE_CONFIG.with_options(journal_read_rows_max=50)


def events(count: int, ids: int, seed: int = 1) -> pa.Table:
    chance = np.random.default_rng(seed)
    at = pa.array(chance.permutation(count) * 1_000_000, pa.int64()).cast(pa.timestamp("us"))
    values = [f"v{n}" for n in chance.integers(0, 9, count)]
    return pa.table([chance.integers(0, ids, count), at, values], schema=EVENTS)


def test_the_latest_row_by_a_column_is_that_of_the_query(tmp_path: Path) -> None:
    rows = events(900, 70)
    made = defined_hops(EVENTS, lambda source: source.key_by("id").latest("out", by="at"))
    job = bench(tmp_path, made, SMALL)
    give(job.broker, rows)

    job.run(workers=2)

    expected = asked('SELECT id, max("at"), arg_max(v, "at") FROM rows GROUP BY 1', rows=rows)
    assert folded(came_out(job.broker, "out"), ["id"]) == expected
    assert state_of(job, "out") == expected


def test_the_first_row_of_each_key_comes_out_once(tmp_path: Path) -> None:
    rows = events(900, 70)
    made = defined_hops(EVENTS, lambda source: source.key_by("id").dedupe("out"))
    job = bench(tmp_path, made, SMALL)
    give(job.broker, rows, partitions=1)

    job.run()

    table = rows.append_column("n", pa.array(range(rows.num_rows)))
    expected = asked('SELECT id, arg_min("at", n), arg_min(v, n) FROM rows GROUP BY 1', rows=table)
    out = came_out(job.broker, "out").to_pylist()
    assert {tuple(row.values()) for row in out} == expected
    assert len(out) == len(expected)


def test_a_row_comes_out_again_when_some_time_has_passed(tmp_path: Path) -> None:
    rows = events(900, 5).sort_by("at")
    made = defined_hops(EVENTS, lambda source: source.key_by("id").dedupe("out", within="1 minute"))
    job = bench(tmp_path, made, SMALL)
    give(job.broker, rows, partitions=1)

    job.run()

    expected, last = [], dict[int, object]()
    for row in rows.to_pylist():
        if row["id"] not in last or (row["at"] - last[row["id"]]).total_seconds() >= 60:
            last[row["id"]] = row["at"]
            expected.append((row["id"], row["at"]))
    out = came_out(job.broker, "out").to_pylist()
    assert Counter((row["id"], row["at"]) for row in out) == Counter(expected)


def test_a_row_without_a_time_does_not_hold_back_the_rows_behind_it(tmp_path: Path) -> None:
    made = defined_hops(EVENTS, lambda source: source.key_by("id").dedupe("out", within="1 minute"))
    job = bench(tmp_path, made, SMALL)
    at = [None, None, 10, 30, None, 70, None, 5]
    times = pa.array([None if s is None else s * 1_000_000 for s in at], pa.int64())
    names = [f"v{n}" for n in range(len(at))]
    rows = pa.table([[1] * len(at), times.cast(pa.timestamp("us")), names], schema=EVENTS)
    for part in (rows.slice(0, 1), rows.slice(1)):
        give(job.broker, part, partitions=1)
        job = job.again()
        job.run()

    assert came_out(job.broker, "out")["v"].to_pylist() == ["v0", "v2", "v5"]


def counted(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """How many rows of its key came before each row; a key is forgotten at v8."""
    so_far = dict(zip(states["id"].to_pylist(), states["seen"].to_pylist(), strict=True))
    out = []
    for row in rows.to_pylist():
        so_far[row["id"]] = 0 if row["v"] == "v8" else so_far.get(row["id"], 0) + 1
        out.append(so_far[row["id"]])
    kept = {key: seen for key, seen in so_far.items() if seen}
    return (
        rows.select(["id"]).append_column("seen", pa.array(out, pa.int64())),
        pa.table({"id": [*kept.keys()], "seen": [*kept.values()]}, schema=states.schema),
    )


def test_a_function_gets_rows_with_the_states_of_their_keys(tmp_path: Path) -> None:
    rows = events(900, 70)
    made = defined_hops(
        EVENTS,
        lambda source: source.key_by("id").stateful(
            "out", counted, state="seen bigint", schema="id bigint, seen bigint", version="1"
        ),
    )
    job = bench(tmp_path, made, SMALL)
    give(job.broker, rows, partitions=1)

    job.run()

    at_once, kept = counted(
        rows, pa.schema([("id", pa.int64()), ("seen", pa.int64())]).empty_table()
    )
    out = came_out(job.broker, "out")
    assert Counter(map(str, out.to_pylist())) == Counter(map(str, at_once.to_pylist()))
    assert state_of(job, "out") == {tuple(row.values()) for row in kept.to_pylist()}


def failing(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    if pc.max(rows["id"]).as_py() > 60:
        raise ValueError("too large")
    return rows, states


def returning_rows(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    del states
    return rows, rows


def with_strangers(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    del states
    return rows, pa.table({"id": [1_000], "n": [1]})


@pytest.mark.parametrize("function", [failing, returning_rows, with_strangers])
def test_a_function_that_fails_ends_the_job_with_the_reason(
    tmp_path: Path, function: Callable[..., tuple[pa.Table, pa.Table]]
) -> None:
    def define(source: Step) -> Step:
        return source.key_by("id").stateful(
            "out",
            function,
            state="n bigint",
            schema=EVENTS,
            version="1",
        )

    job = bench(tmp_path, defined_hops(EVENTS, define), SMALL)
    give(job.broker, events(900, 70))

    job.run()

    (event, *_) = [e for e in happened(job.broker) if e.happened is JobEventKind.FAILED]
    reasons = ("too large", "other columns", "a key of which it got no row")
    assert any(reason in event.detail["error"] for reason in reasons)
