"""Joins of two streams, read by several workers in any order; DuckDB is the judge."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    bench,
    came_out,
    give,
    graph_hops,
    state_rows,
)

from millrace.errors import UserError
from millrace.pipeline.define.steps import Step

TIME = pa.timestamp("us", "UTC")
ORDERS = pa.schema([("id", pa.int64()), ("at", TIME), ("amount", pa.int64())])
PAYMENTS = pa.schema([("order_id", pa.int64()), ("paid_at", TIME), ("paid", pa.int64())])
SOURCES = {"orders": ORDERS, "payments": PAYMENTS}
SMALL = STATE_CONFIG.with_options(journal_read_rows_max=64)


def rows_of(schema: pa.Schema, count: int, ids: int, jitter_s: int, seed: int) -> pa.Table:
    """A row each 10 seconds, disordered by up to so many seconds."""
    chance = np.random.default_rng(seed)
    seconds = np.arange(count) * 10 + chance.integers(0, jitter_s + 1, count)
    times = pa.array(seconds * 1_000_000, pa.int64()).cast(TIME)
    keys = pa.array(chance.integers(0, ids, count), mask=chance.random(count) < 0.02)
    return pa.table([keys, times, chance.integers(0, 100, count)], schema=schema)


def pairs_of(orders: pa.Table, payments: pa.Table, within_s: int | None) -> Counter[object]:
    near = f"AND abs(epoch(o.at) - epoch(p.paid_at)) <= {within_s}" if within_s else ""
    sql = f"SELECT o.*, p.* FROM o JOIN p ON o.id = p.order_id {near}".replace("o.at", 'o."at"')
    with duckdb.connect() as connection:
        connection.register("o", orders)
        connection.register("p", payments)
        found = connection.sql(sql).to_arrow_table()
    return Counter(map(str, found.cast(pa.schema([*ORDERS, *PAYMENTS])).to_pylist()))


def joined(left: Step, right: Step, **options: str) -> Step:
    keyed = left.key_by("id", partitions=2)
    return keyed.join("out", right.key_by("order_id"), time=("at", "paid_at"), **options)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_pair_within_an_hour_comes_out_once(tmp_path: Path, workers: int) -> None:
    orders = rows_of(ORDERS, 700, 40, 600, seed=1)
    payments = rows_of(PAYMENTS, 700, 40, 600, seed=2)
    made = graph_hops(SOURCES, lambda steps: joined(*steps, within="20 minutes"))
    job = bench(tmp_path, made, SMALL)
    give(job.broker, orders, name="orders")
    give(job.broker, payments, name="payments")

    job.run(workers=workers)

    out = came_out(job.broker, "out")
    assert Counter(map(str, out.to_pylist())) == pairs_of(orders, payments, 1200)
    assert len(out) > 500


def test_rows_that_nothing_can_be_paired_with_are_forgotten(tmp_path: Path) -> None:
    orders = rows_of(ORDERS, 900, 40, 60, seed=1)
    payments = rows_of(PAYMENTS, 900, 40, 60, seed=2)
    made = graph_hops(SOURCES, lambda steps: joined(*steps, within="10 minutes", late="2 minutes"))
    job = bench(tmp_path, made, SMALL)
    half = 450
    for part in (slice(0, half), slice(half, 900)):
        first, length = part.start, part.stop - part.start
        give(job.broker, orders.slice(first, length), name="orders")
        give(job.broker, payments.slice(first, length), name="payments")
        job = job.again() if first else job
        job.run(workers=2)

    out = came_out(job.broker, "out")
    assert Counter(map(str, out.to_pylist())) == pairs_of(orders, payments, 600)
    assert len(state_rows(job, "out")) < 600


def test_sides_that_cannot_be_joined_are_refused() -> None:
    def both(steps: list[Step], problem: str) -> None:
        left, right = steps
        if problem == "by key":
            left.key_by("id").join("out", right)
        elif problem == "other types":
            left.key_by("at").join("out", right.key_by("order_id"))
        elif problem == "a column 'left' already":
            left.select("id AS left").key_by("left").join("out", right.key_by("order_id"))
        else:
            left.key_by("id").aggregate("a", n="count(*)").key_by("id").join(
                "out", right.key_by("order_id")
            )

    problems = ("by key", "other types", "a column 'left' already", "do not say which rows")
    for problem in problems:
        with pytest.raises(UserError, match=problem):
            graph_hops(SOURCES, partial(both, problem=problem))


def test_changes_are_no_rows_of_windows() -> None:
    def over_changes(steps: list[Step]) -> None:
        changes = steps[0].key_by("id").aggregate("a", n="count(*)", at="max(at)").key_by("id")
        changes.window("out", tumbling="1 minute", n="count(*)")

    with pytest.raises(UserError, match="are changes"):
        graph_hops(SOURCES, over_changes)
