"""Rows that are looked up in a table that follows a stream; DuckDB is the judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    asked,
    bench,
    came_out,
    give,
    graph_hops,
    state_of,
)
from tests.unit.pipeline.worker.worker_kit import JOB, Bench

import millrace as mr
from millrace.errors import UserError
from millrace.pipeline.core.hops import Hop, Unit, output_journal
from millrace.pipeline.core.unit_choice import FlowLimits, Steps, UnitState, rank
from millrace.pipeline.define.steps import Step

ORDERS = pa.schema([("n", pa.int64()), ("cust_id", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("tier", pa.string())])
SOURCES = {"orders": ORDERS, "customers": CUSTOMERS}
SMALL = STATE_CONFIG.with_options(journal_read_rows_max=64)
RICH = "SELECT n, cust_id, tier FROM o LEFT JOIN c ON id = cust_id"


def orders_of(count: int, first: int = 0) -> pa.Table:
    chance = np.random.default_rng(first)
    keys = pa.array(chance.integers(0, 50, count), mask=chance.random(count) < 0.05)
    return pa.table([np.arange(first, first + count), keys], schema=ORDERS)


def customers_of(ids: range, tier: str) -> pa.Table:
    return pa.table([[*ids], [f"{tier} {n % 3}" for n in ids]], schema=CUSTOMERS)


def rich(orders: Step, customers: Step) -> Step:
    return orders.lookup("out", customers.key_by("id", partitions=2), on="cust_id")


def hops_of() -> list[Hop]:
    return graph_hops(SOURCES, lambda steps: rich(*steps))


def rows_out(job: Bench) -> Counter[object]:
    return Counter(tuple(row.values()) for row in came_out(job.broker, "out").to_pylist())


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_wait_for_a_table_that_is_on_its_way(tmp_path: Path, workers: int) -> None:
    orders, customers = orders_of(500), customers_of(range(30), "tier")
    job = bench(tmp_path, hops_of(), SMALL)
    give(job.broker, orders, name="orders")
    give(job.broker, customers, name="customers")

    job.run(workers=workers)

    assert set(rows_out(job)) == asked(RICH, o=orders, c=customers)
    assert rows_out(job).total() == 500
    assert state_of(job, "out") == asked("SELECT * FROM c", c=customers)


def test_a_row_gets_the_row_that_its_key_has_then(tmp_path: Path) -> None:
    orders, first = [orders_of(100), orders_of(100, 100)], customers_of(range(40), "old")
    job = bench(tmp_path, hops_of(), SMALL)
    give(job.broker, first, name="customers")
    give(job.broker, orders[0], name="orders")
    job.run()
    then = set(rows_out(job))
    again = customers_of(range(20), "new")
    give(job.broker, again, name="customers")
    give(job.broker, orders[1], name="orders")

    job.run()

    assert then == asked(RICH, o=orders[0], c=first)
    now = pa.concat_tables([again, first.slice(20)])
    assert set(rows_out(job)) - then == asked(RICH, o=orders[1], c=now)


def test_a_key_that_its_table_takes_back_is_gone(tmp_path: Path) -> None:
    def define(steps: list[Step]) -> Step:
        tiers = steps[1].select("id AS c", "tier").key_by("c", name="by_id", partitions=2)
        last = tiers.latest("last", emit="retractions")
        counts = last.key_by("tier", partitions=2).aggregate("counts", n="count(*)")
        named = steps[0].select("n AS o", "concat('tier ', cust_id % 9) AS tier")
        return named.lookup("out", counts, on="tier")

    job = bench(tmp_path, graph_hops(SOURCES, define), SMALL)
    give(job.broker, customers_of(range(30), "tier"), name="customers")
    give(job.broker, customers_of(range(0, 30, 3), "other"), name="customers")

    job.run()
    give(job.broker, orders_of(200), name="orders")
    job.run()

    found = {row["tier"]: row["n"] for row in came_out(job.broker, "out").to_pylist()}
    assert found["tier 0"] is None, "all of its rows were taken back"
    assert found["tier 1"] == found["tier 2"] == 10


def test_rows_that_look_up_do_not_wait_for_a_step_that_is_pushed_back() -> None:
    steps = Steps.of(hops_of())
    rows, fills, table = (
        Unit("out", output_journal(JOB, "out.rows", 0)),
        Unit("out.table", output_journal(JOB, "customers", 0)),
        Unit("out", output_journal(JOB, "out.table", 0)),
    )
    assert all(steps.hops[unit.hop].reads(unit.journal) for unit in (rows, fills, table))

    def chosen(most: int, **waiting: int) -> list[Unit]:
        given = {"rows": rows, "fills": fills, "table": table}
        states = [UnitState(unit=given[name], rows=count) for name, count in waiting.items()]
        limits = FlowLimits(backlog_rows_max=most, sink_bytes=1, sink_ms=1)
        return rank(steps, states, limits)

    assert chosen(100, rows=5, fills=5) == [fills]
    assert chosen(100, rows=5, table=5) == [table]
    assert chosen(100, rows=5) == [rows]
    assert chosen(3, rows=5, fills=5) == [rows]


def test_a_dataset_is_taken_in_as_a_table(tmp_path: Path) -> None:
    ws = mr.open(tmp_path / "mill", create=True)
    ws.journals.create("orders", ORDERS)
    orders = ws.job("j").source("orders", journal="orders")
    customers = ws.from_arrow(customers_of(range(3), "tier")).withColumnRenamed("id", "cust_id")

    made = orders.lookup("rich", customers, on="cust_id")

    assert made.columns == ["n", "cust_id", "tier"]


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (lambda o, c: o.lookup("x", c, on="cust_id"), "'customers' are not by key"),
        (lambda o, c: o.lookup("x", c.key_by("id")), "'orders' are not by key"),
        (lambda o, c: o.lookup("x", c.key_by("tier"), on="cust_id"), "other types"),
        (lambda o, c: o.lookup("x", c.key_by("id", "tier"), on="cust_id"), "other types"),
        (lambda o, _: o.lookup("x", "customers", on="cust_id"), "in a str"),
        (lambda _, c: c.lookup("x", c.key_by("id"), on="id"), "both sides have a column 'tier'"),
        (
            lambda o, c: o.key_by("n").latest("l").lookup("x", c.key_by("id"), on="cust_id"),
            "changes",
        ),
    ],
)
def test_tables_that_cannot_be_looked_up_in_are_refused(define: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        graph_hops(SOURCES, lambda steps: define(*steps))  # type: ignore[operator]
