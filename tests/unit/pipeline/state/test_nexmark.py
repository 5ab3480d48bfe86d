"""Queries of NEXMark as jobs: answers equal to those of DuckDB over the whole input.

Queries 4 and 6 average over results that change: each new highest bid takes its predecessor back.
A bid counts for an auction in the hour behind its opening.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.unit.pipeline.state.nexmark_kit import SOURCES, nexmark
from tests.unit.pipeline.state.state_kills_kit import fill_sources, killed_at_random, prepare
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    bench,
    came_out,
    folded,
    graph_hops,
    net_of,
)
from tests.unit.pipeline.worker.worker_kit import JOB

from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.pipeline.core.hops import Hop, output_journal
from millrace.pipeline.define.steps import Step

EVENTS = 6_000
SMALL = STATE_CONFIG.with_options(journal_read_rows_max=400)
SLOT = "CAST(unix_micros({}) DIV 10000000 AS BIGINT) AS slot"


def q0(bids: Step) -> Step:
    return bids.key_by("auction", partitions=2, name="out")


def q1(bids: Step) -> Step:
    euros = bids.select("auction", "bidder", "price * 908 DIV 1000 AS price", "ts")
    return euros.key_by("auction", partitions=2, name="out")


def q2(bids: Step) -> Step:
    some = bids.filter("auction % 123 = 0").select("auction", "price")
    return some.key_by("auction", partitions=2, name="out")


def q3(persons: Step, auctions: Step) -> Step:
    near = persons.filter("state IN ('OR', 'ID', 'CA')").select("id", "city", "state")
    listed = auctions.filter("category = 10").select("auction", "seller")
    return listed.key_by("seller", partitions=2).join("out", near.key_by("id"))


def highest_bids(auctions: Step, bids: Step) -> Step:
    """The highest bid of each auction so far; a higher one takes it back."""
    sold = auctions.key_by("auction", partitions=2).join(
        "sold",
        bids.select("auction", "price", "ts").key_by("auction", name="bids_by_auction"),
        within="30s",
        time=("opened", "ts"),
    )
    behind = sold.filter("ts >= opened").key_by("auction", "category", "seller", partitions=2)
    return behind.aggregate("finals", final="max(price)", emit="retractions")


def q4(auctions: Step, bids: Step) -> Step:
    by_category = highest_bids(auctions, bids).key_by("category", partitions=2)
    return by_category.aggregate("out", mean="avg(final)")


def last_ten(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The mean price of the last ten auctions of each seller, as they are numbered."""
    known = {row["seller"]: json.loads(row["sold"]) for row in states.to_pylist()}
    touched = dict[int, None]()
    for row in rows.to_pylist():
        sold = known.setdefault(row["seller"], {})
        touched[row["seller"]] = None
        if row["_mr_op"] == "delete":
            del sold[str(row["auction"])]
        else:
            sold[str(row["auction"])] = row["final"]
    means = []
    for seller in touched:
        last = [known[seller][n] for n in sorted(known[seller], key=int)[-10:]]
        means.append(sum(last) / len(last) if last else None)
    made = pa.table({"seller": [*touched], "mean": pa.array(means, pa.float64())})
    texts = [json.dumps(sold) for sold in known.values()]
    return made, pa.table({"seller": [*known], "sold": texts}, schema=states.schema)


def q6(auctions: Step, bids: Step) -> Step:
    by_seller = highest_bids(auctions, bids).key_by("seller", partitions=2)
    schema = "seller bigint, mean double"
    return by_seller.stateful("out", last_ten, state="sold string", schema=schema, version="1")


def q5(bids: Step) -> Step:
    counted = bids.key_by("auction", partitions=2).window(
        "counted", sliding=("1 minute", "20 seconds"), late="2s", emit="close", n="count(*)"
    )
    counts = counted.select("auction", "window_start", "n")
    top = counts.key_by("window_start", partitions=2).aggregate(
        "top", most="max(n)", emit="retractions"
    )
    hottest = top.select("_mr_op", "window_start AS at", "most").key_by("at", "most", partitions=2)
    return counts.key_by("window_start", "n", partitions=2, name="by_count").join("out", hottest)


def q7(bids: Step) -> Step:
    top = bids.select("1 AS one", "price", "ts").key_by("one", partitions=1)
    highest = top.window("highest", tumbling="10s", late="2s", emit="close", top="max(price)")
    tops = highest.select("top", SLOT.format("window_start")).key_by("slot", "top", partitions=2)
    slotted = bids.select("auction", "bidder", "price", SLOT.format("ts"))
    return slotted.key_by("slot", "price", partitions=2).join("out", tops)


def q8(persons: Step, auctions: Step) -> Step:
    new = persons.select("id", "city", SLOT.format("ts")).key_by("id", "slot", partitions=2)
    sold = auctions.select("auction", "seller", SLOT.format("opened"))
    return new.join("out", sold.key_by("seller", "slot"))


SLOTTED = "epoch_us({}) // 10000000"
SQL = {
    q0: "SELECT auction, bidder, price, ts FROM bids",
    q1: "SELECT auction, bidder, price * 908 // 1000, ts FROM bids",
    q2: "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    q3: "SELECT auction, seller, id, city, state FROM auctions JOIN persons ON seller = id "
    "WHERE category = 10 AND state IN ('OR', 'ID', 'CA')",
    q8: f"SELECT id, city, {SLOTTED.format('persons.ts')} AS slot, auction, seller FROM persons "
    f"JOIN auctions ON seller = id AND {SLOTTED.format('persons.ts')} = {SLOTTED.format('opened')}",
}
HOTTEST = """WITH w AS (
    SELECT auction, epoch_us(ts) // 20000000 * 20 - k * 20 AS b FROM bids, range(3) t(k)),
c AS (SELECT auction, b, count(*) AS n FROM w GROUP BY ALL)
SELECT b, auction, n FROM c QUALIFY n = max(n) OVER (PARTITION BY b)"""
FINALS = """f AS (SELECT auction, category, seller, max(price) AS final
    FROM auctions a JOIN bids b USING (auction)
    WHERE b.ts >= opened AND b.ts <= opened + INTERVAL 30 SECOND GROUP BY ALL)"""
MEANS = f"WITH {FINALS} SELECT category, avg(final) FROM f GROUP BY 1"
LAST_TEN = f"""WITH {FINALS}, t AS (SELECT * FROM f QUALIFY
    row_number() OVER (PARTITION BY seller ORDER BY auction DESC) <= 10)
SELECT seller, avg(final) FROM t GROUP BY 1"""
HIGHEST = """WITH b AS (SELECT *, epoch_us(ts) // 10000000 AS slot FROM bids),
t AS (SELECT slot, max(price) AS price FROM b GROUP BY slot)
SELECT auction, bidder, price, slot FROM b JOIN t USING (slot, price)"""
BORDER_S = 30
"""Windows that end this long before the last row are closed."""
SOLD = ("auctions", "bids")
READS = {q3: ("persons", "auctions"), q4: SOLD, q6: SOLD, q8: ("persons", "auctions")}
Query = Callable[..., Step]
Row = tuple[Any, ...]


def hops_of(query: Query) -> list[Hop]:
    read = {name: SOURCES[name] for name in READS.get(query, ("bids",))}
    return graph_hops(read, lambda steps: query(*steps))


def rows_of(query: Query) -> dict[str, tuple[pa.Table, int]]:
    tables = nexmark(EVENTS)
    return {name: (tables[name], 2) for name in READS.get(query, ("bids",))}


def judged(sql: str, tables: Mapping[str, pa.Table] | None = None) -> Counter[Row]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, table in (tables or nexmark(EVENTS)).items():
            connection.register(name, table)
        return Counter(connection.execute(sql).fetchall())


def answers(broker: Broker) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = came_out(broker, "out").to_pylist()
    return rows


def check(query: Query, broker: Broker, tables: Mapping[str, pa.Table] | None = None) -> None:
    """Compare what came out with what a judge says."""
    last_s = EVENTS / 10 - BORDER_S
    if query is q5:
        out = came_out(broker, "out").select(["_mr_op", "window_start", "auction", "n"])
        starts = out["window_start"].cast(pa.int64())
        net = net_of(out.set_column(1, "window_start", starts))
        expected = Counter(
            str({"window_start": b * 1_000_000, "auction": auction, "n": n})
            for b, auction, n in judged(HOTTEST)
            if b + 60 < last_s
        )
        assert not expected - net
        assert len(expected) > 20
    elif query is q4:
        rows = came_out(broker, "out")
        assert folded(rows, ["category"]) == set(judged(MEANS, tables))
        assert "update" in rows["_mr_op"].to_pylist()
    elif query is q6:
        means = {row["seller"]: row["mean"] for row in answers(broker)}
        assert means == pytest.approx(dict([*judged(LAST_TEN)]))
        assert len(means) > 30
    elif query is q7:
        names = ("auction", "bidder", "price", "slot")
        found: Counter[Row] = Counter(tuple(row[n] for n in names) for row in answers(broker))
        highest = judged(HIGHEST)
        early = Counter({row: n for row, n in highest.items() if (row[3] + 1) * 10 < last_s})
        assert not early - found
        assert not found - highest
        assert len(early) > 40
    else:
        assert Counter(tuple(row.values()) for row in answers(broker)) == judged(SQL[query], tables)


@pytest.mark.slow
@pytest.mark.parametrize("query", [q0, q1, q2, q3, q4, q5, q6, q7, q8])
def test_a_query_over_disordered_rows_is_answered_as_over_the_whole_input(
    tmp_path: Path, query: Query
) -> None:
    job = bench(tmp_path, hops_of(query), SMALL)
    fill_sources(job.broker, rows_of(query))

    job.run(workers=3)

    check(query, job.broker)


@pytest.mark.slow
@pytest.mark.parametrize("query", [q3, q4, q5, q6, q7, q8])
def test_a_query_whose_workers_are_killed_is_answered_alike(tmp_path: Path, query: Query) -> None:
    prepare(tmp_path, rows_of(query))

    assert killed_at_random(tmp_path, partial(hops_of, query), seed=3)

    broker = EmbeddedBroker.open(str(tmp_path / "mill"))
    try:
        check(query, broker)
    finally:
        broker.close()


def once(rows: Step) -> Step:
    """Rows that came several times, once."""
    by_row = rows.key_by(*rows.columns, partitions=2, name=f"{rows.name}_by_row")
    return by_row.dedupe(f"{rows.name}_once")


@pytest.mark.slow
@pytest.mark.parametrize("query", [q2, q3, q4])
def test_repeated_rows_and_transactions_that_are_rolled_back_change_no_answer(
    tmp_path: Path, query: Query
) -> None:
    read = {name: SOURCES[name] for name in READS.get(query, ("bids",))}
    made = graph_hops(read, lambda steps: query(*map(once, steps)))
    job = bench(tmp_path, made, SMALL)
    fill_sources(job.broker, {name: (SOURCES[name].empty_table(), 2) for name in read})
    for name, (table, partitions) in rows_of(query).items():
        for begin in range(0, table.num_rows, 500):
            journal = output_journal(JOB, name, begin // 500 % partitions)
            producer = job.broker.producer()
            producer.append(journal, table.slice(begin, 500))
            producer.rollback()
            for rows in (table.slice(begin, 500), table.slice(begin, 50)):
                producer.append(journal, rows)
                producer.commit()
            producer.close()

    job.run(workers=3)

    once_each = {
        name: rows.group_by(rows.column_names).aggregate([])
        for name, rows in nexmark(EVENTS).items()
    }
    check(query, job.broker, once_each)
