"""Aggregates that follow their input; DuckDB is the judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    ORDERS,
    TOTALS,
    asked,
    bench,
    came_out,
    folded,
    give,
    state_hops,
    state_of,
    totals_step,
)

from millrace.errors import UserError

SQL = 'SELECT "user", CAST(sum(amount) AS BIGINT), count(*) FROM orders GROUP BY 1'


def orders(count: int, users: int, seed: int = 1) -> pa.Table:
    chance = np.random.default_rng(seed)
    return pa.table(
        [chance.integers(0, users, count), chance.integers(-50, 100, count)], schema=ORDERS
    )


def test_totals_and_their_state_are_those_of_the_query(tmp_path: Path) -> None:
    rows = orders(3_000, 300)
    job = bench(tmp_path, state_hops(totals_step(ORDERS, ["user"], TOTALS), ORDERS))
    give(job.broker, rows)

    job.run()

    expected = asked(SQL, orders=rows)
    assert folded(came_out(job.broker, "totals"), ["user"]) == expected
    assert state_of(job, "totals") == expected


def test_a_later_run_goes_on_with_the_state(tmp_path: Path) -> None:
    first, second = orders(500, 50), orders(500, 80, seed=2)
    job = bench(tmp_path, state_hops(totals_step(ORDERS, ["user"], TOTALS), ORDERS))
    give(job.broker, first)
    job.run()
    give(job.broker, second)

    job.again().run(workers=3)

    expected = asked(SQL, orders=pa.concat_tables([first, second]))
    assert folded(came_out(job.broker, "totals"), ["user"]) == expected
    assert state_of(job, "totals") == expected


@pytest.mark.parametrize("changes", [1, 40])
def test_a_state_that_was_written_to_files_is_the_same(tmp_path: Path, changes: int) -> None:
    job = bench(tmp_path, state_hops(totals_step(ORDERS, ["user"], TOTALS), ORDERS))
    job.config = job.config.with_options(job_snapshot_changes=changes)
    parts = [orders(200, 40, seed) for seed in range(6)]
    for number, part in enumerate(parts):
        give(job.broker, part)
        job = job.again(folder=tmp_path) if number else job
        job.run(workers=1 + number % 2)

    expected = asked(SQL, orders=pa.concat_tables(parts))
    assert state_of(job, "totals") == expected
    assert folded(came_out(job.broker, "totals"), ["user"]) == expected
    assert list((tmp_path / "large").rglob("*"))


def test_what_cannot_be_kept_up_to_date_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="needs all rows of a key"):
        totals_step(ORDERS, ["user"], {"n": "count(DISTINCT amount)"})


def test_only_rows_whose_values_change_come_out(tmp_path: Path) -> None:
    step = totals_step(ORDERS, ["user"], {"top": "max(amount)"}, emit="upserts")
    job = bench(tmp_path, state_hops(step, ORDERS))
    give(job.broker, pa.table([[1, 2], [5, 6]], schema=ORDERS))
    job.run()
    give(job.broker, pa.table([[1, 2], [3, 7]], schema=ORDERS))
    job.again().run()

    rows = came_out(job.broker, "totals").to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, 5), (2, 6), (2, 7)]
