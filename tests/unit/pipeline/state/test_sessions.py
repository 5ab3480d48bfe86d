"""Sessions of disordered rows that several journals bring; DuckDB is the judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    asked,
    bench,
    came_out,
    defined_hops,
    folded,
    give,
    net_of,
    skipped_rows,
    state_of,
)
from tests.unit.pipeline.state.test_windows import CLICKS, shown

from millrace.errors import UserError
from millrace.pipeline.core.hops import Hop

SMALL = STATE_CONFIG.with_options(journal_read_rows_max=30)
GAP_S = 30


def visits(count: int, jitter_s: int, seed: int = 1) -> pa.Table:
    """Rows of six users with pauses between them, disordered by up to so many seconds."""
    chance = np.random.default_rng(seed)
    seconds = np.cumsum(chance.choice([1, 5, 10, 60], count)) + chance.integers(
        0, jitter_s + 1, count
    )
    times = pa.array(seconds * 1_000_000, pa.int64()).cast(CLICKS.field("ts").type)
    users = pa.array(chance.integers(0, 6, count), mask=chance.random(count) < 0.03)
    return pa.table([users, times, chance.integers(0, 100, count)], schema=CLICKS)


def sessions_of(rows: pa.Table) -> set[tuple[object, ...]]:
    """What a judge says, who numbers the pauses."""
    return asked(
        f"""WITH r AS (SELECT *, epoch_us(ts) // 1000000 AS s FROM rows),
        p AS (SELECT *, s - lag(s) OVER (PARTITION BY "user" ORDER BY s) > {GAP_S} AS p FROM r),
        n AS (SELECT *, count_if(coalesce(p, false)) OVER (PARTITION BY "user" ORDER BY s) AS n
              FROM p)
        SELECT "user", min(s), max(s) + {GAP_S}, count(*), CAST(sum(v) AS BIGINT)
        FROM n GROUP BY "user", n""",
        rows=rows,
    )


def sessions(**options: Any) -> list[Hop]:  # noqa: ANN401 - of any option
    totals: dict[str, Any] = {"n": "count(*)", "total": "sum(v)"}
    return defined_hops(
        CLICKS,
        lambda source: source.key_by("user", partitions=2).window(
            "out", session=GAP_S, **options, **totals
        ),
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_sessions_that_never_close_are_those_of_the_query(tmp_path: Path, workers: int) -> None:
    rows = visits(500, jitter_s=400)
    job = bench(tmp_path, sessions(), SMALL)
    give(job.broker, rows)

    job.run(workers=workers)

    expected = sessions_of(rows)
    changes = came_out(job.broker, "out")
    assert shown(folded(changes, ["user", "window_start"])) == expected
    assert shown(state_of(job, "out")) == expected
    assert {"insert", "update", "delete"} == set(changes["_mr_op"].to_pylist())


def test_each_old_session_is_taken_back_before_the_new_one_comes(tmp_path: Path) -> None:
    rows = visits(500, jitter_s=400)
    job = bench(tmp_path, sessions(emit="retractions"), SMALL)
    give(job.broker, rows)

    job.run()

    left = net_of(came_out(job.broker, "out").drop_columns(["window_start", "window_end"]))
    expected = sessions_of(rows)
    names = ("user", "n", "total")
    assert left == Counter(
        str(dict(zip(names, (u, n, t), strict=True))) for u, _, _, n, t in expected
    )


@pytest.mark.parametrize("workers", [1, 3])
def test_a_closed_session_comes_out_once_and_is_whole(tmp_path: Path, workers: int) -> None:
    rows = visits(600, jitter_s=60)
    job = bench(tmp_path, sessions(late="1m", emit="close"), SMALL)
    for part in (rows.slice(0, 300), rows.slice(300)):
        give(job.broker, part)
        job = job.again()
        job.run(workers=workers)

    out = came_out(job.broker, "out")
    closed = shown({tuple(row.values()) for row in out.to_pylist()})
    still_open = shown(state_of(job, "out"))
    assert len(closed) == out.num_rows > 30
    assert closed | still_open == sessions_of(rows)
    assert not closed & still_open
    assert skipped_rows(job, "out").total == 0


def test_sessions_that_become_one_cannot_be_upserts() -> None:
    with pytest.raises(UserError, match="two sessions may become one"):
        sessions(emit="upserts")
    with pytest.raises(UserError, match="one kind of window"):
        sessions(tumbling="1 minute")
