"""Rows that go take back what was made of them; DuckDB over the rows that are left is the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
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
    graph_hops,
    net_of,
    state_of,
    state_rows,
)
from tests.unit.pipeline.worker.worker_kit import happened

from millrace.errors import UserError
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.define.steps import Step

OP = pa.field("_mr_op", pa.string())
LEFT = pa.schema([OP, ("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
RIGHT = pa.schema([OP, ("rid", pa.int64()), ("rk", pa.int64()), ("w", pa.int64())])
SMALL = STATE_CONFIG.with_options(journal_read_rows_max=40)
TOTALS: dict[str, Any] = {"n": "count(*)", "m": "count(v)", "total": "sum(v)", "mean": "avg(v)"}
SQL = """SELECT k, count(*), count(v), CAST(sum(v) AS BIGINT), avg(v) FROM rows GROUP BY 1"""


def changes(count: int, schema: pa.Schema, seed: int = 1) -> tuple[pa.Table, pa.Table]:
    """Rows that come and go, and those that are left."""
    chance = np.random.default_rng(seed)
    made, left = list[dict[str, Any]](), list[dict[str, Any]]()
    names = schema.names[1:]
    for number in range(count):
        if left and chance.random() < 0.4:
            row = left.pop(int(chance.integers(len(left))))
            made.append({**row, "_mr_op": "delete"})
        else:
            value = None if chance.random() < 0.3 else int(chance.integers(-9, 9))
            key = None if chance.random() < 0.03 else int(chance.integers(0, 12))
            row = dict(zip(names, (number // 3, key, value), strict=True))
            left.append(row)
            made.append({**row, "_mr_op": "insert"})
    plain = pa.schema(list(schema)[1:])
    return pa.Table.from_pylist(made, schema), pa.Table.from_pylist(left, plain)


def test_sums_counts_and_averages_are_those_of_the_rows_that_are_left(tmp_path: Path) -> None:
    rows, left = changes(700, LEFT)
    made = defined_hops(LEFT, lambda s: s.key_by("k", partitions=2).aggregate("out", **TOTALS))
    job = bench(tmp_path, made, SMALL)
    give(job.broker, rows, partitions=1)

    job.run(workers=2)

    expected = asked(SQL, rows=left)
    assert folded(came_out(job.broker, "out"), ["k"]) == expected
    assert state_of(job, "out") == expected
    assert "delete" in came_out(job.broker, "out")["_mr_op"].to_pylist()


def test_a_row_whose_key_changes_leaves_the_total_of_its_old_key(tmp_path: Path) -> None:
    """Totals of the last rows: each new row takes its predecessor out, under another key."""
    chance = np.random.default_rng(3)
    plain = pa.schema(list(LEFT)[1:])
    columns = [chance.integers(0, most, 600) for most in (50, 9, 100)]
    rows = pa.table([pa.array(column) for column in columns], schema=plain)

    def define(source: Step) -> Step:
        last = source.key_by("id", partitions=2).latest("last", emit="retractions")
        return last.key_by("k", partitions=2).aggregate("out", **TOTALS)

    job = bench(tmp_path, defined_hops(plain, define), SMALL)
    give(job.broker, rows, partitions=1)

    job.run(workers=2)

    numbered = rows.append_column("n", pa.array(range(rows.num_rows)))
    last = "(SELECT id, arg_max(k, n) AS k, arg_max(v, n) AS v FROM rows GROUP BY 1)"
    expected = asked(SQL.replace("FROM rows", f"FROM {last}"), rows=numbered)
    assert folded(came_out(job.broker, "out"), ["k"]) == expected


@pytest.mark.parametrize("emit", ["changes", "retractions"])
def test_a_delete_takes_the_last_row_of_a_key_out(tmp_path: Path, emit: Any) -> None:  # noqa: ANN401 - a word
    ops = ["insert", "insert", "update", "delete", "delete", "insert", "insert", "delete"]
    keys = [1, 2, 1, 2, 3, 4, 5, 5]
    count = [*range(len(ops))]
    rows = pa.table([ops, keys, count, count], schema=LEFT)
    made = defined_hops(LEFT, lambda s: s.key_by("id", partitions=1).latest("out", emit=emit))
    job = bench(tmp_path, made, SMALL)
    for at in range(0, rows.num_rows, 3):
        give(job.broker, rows.slice(at, 3), partitions=1)
        job.run()
        job = job.again()

    out = came_out(job.broker, "out")
    net = Counter[tuple[int, int]]()
    for op, key, _, value in zip(*out.to_pydict().values(), strict=True):
        net[key, value] += -1 if op == "delete" else 1
    assert {row["id"]: row["v"] for row in state_rows(job, "out")} == {1: 2, 4: 5}
    if emit == "changes":
        assert folded(out, ["id"]) == {(1, 2, 2), (4, 5, 5)}
    else:
        assert +net == {(1, 2): 1, (4, 5): 1}
        assert not -net


@pytest.mark.parametrize("workers", [1, 3])
def test_pairs_are_those_of_the_rows_that_are_left(tmp_path: Path, workers: int) -> None:
    left, there = changes(500, LEFT)
    right, others = changes(500, RIGHT, seed=2)
    made = graph_hops(
        {"l": LEFT, "r": RIGHT},
        lambda s: s[0].key_by("k", partitions=2).join("out", s[1].key_by("rk")),
    )
    job = bench(tmp_path, made, SMALL)
    give(job.broker, left, partitions=1, name="l")
    give(job.broker, right, partitions=1, name="r")

    job.run(workers=workers)

    assert net_of(came_out(job.broker, "out")) == pairs_of(there, others)


def pairs_of(left: pa.Table, right: pa.Table) -> Counter[Any]:
    with duckdb.connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        found = connection.sql("SELECT * FROM l JOIN r ON k = rk").to_arrow_table()
    return Counter(map(str, found.to_pylist()))


def test_a_delete_of_a_row_that_never_came_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    rows = pa.table([["delete"], [1], [1], [1]], schema=LEFT)
    for number, define in enumerate(
        [
            lambda s: s[0].key_by("k").aggregate("out", n="count(*)"),
            lambda s: s[0].key_by("k").join("out", s[1].key_by("rk")),
        ]
    ):
        sources = {"src": LEFT, "other": RIGHT} if number else {"src": LEFT}
        job = bench(tmp_path / str(number), graph_hops(sources, define), SMALL)
        give(job.broker, rows, partitions=1)
        for name in [*sources][1:]:
            give(job.broker, RIGHT.empty_table(), partitions=1, name=name)

        job.run()

        (event, *_) = [e for e in happened(job.broker) if e.happened is JobEventKind.FAILED]
        assert "taken back" in event.detail["error"]


def test_nan_and_infinity_that_are_taken_back_leave_nothing_behind(tmp_path: Path) -> None:
    schema = pa.schema([OP, ("k", pa.int64()), ("v", pa.float64())])
    nan, inf = float("nan"), float("inf")
    rows = pa.table(
        [
            ["insert", "insert", "insert", "delete", "delete", "insert", "insert"],
            [1, 1, 1, 1, 1, 2, 2],
            [2.5, nan, -inf, nan, -inf, inf, 1.0],
        ],
        schema=schema,
    )
    made = defined_hops(schema, lambda s: s.key_by("k").aggregate("out", t="sum(v)", m="avg(v)"))
    job = bench(tmp_path, made, STATE_CONFIG.with_options(journal_read_rows_max=2))
    give(job.broker, rows, partitions=1)

    job.run()

    assert state_of(job, "out") == {(1, 2.5, 2.5), (2, inf, inf)}


def test_an_update_without_its_old_row_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    job = bench(
        tmp_path,
        defined_hops(LEFT, lambda s: s.key_by("k").aggregate("out", n="count(*)")),
        SMALL,
    )
    give(job.broker, pa.table([["update"], [1], [1], [1]], schema=LEFT), partitions=1)

    job.run()

    (event, *_) = [e for e in happened(job.broker) if e.happened is JobEventKind.FAILED]
    assert "emit='retractions'" in event.detail["error"]


def test_what_cannot_be_taken_back_is_refused_with_the_reason() -> None:
    def made(steps: list[Step], define: Callable[[Step, Step], Step]) -> None:
        define(steps[0].key_by("k"), steps[1].key_by("rk"))

    cases: dict[str, Callable[[Step, Step], Step]] = {
        "cannot be taken back": lambda a, _: a.aggregate("out", n="max(v)"),
        "emit is 'upserts' over changes": lambda a, _: a.latest("out", emit="upserts"),
        "give 'last' emit='retractions'": lambda a, _: (
            a.latest("last").key_by("v").aggregate("out", n="count(*)")
        ),
        "late= over changes": lambda a, b: a.join("out", b, within="1 minute", late="0s"),
        "ttl= over changes": lambda a, _: a.aggregate("out", ttl="1d", n="count(*)"),
    }
    for problem, define in cases.items():
        with pytest.raises(UserError, match=problem):
            graph_hops({"l": LEFT, "r": RIGHT}, partial(made, define=define))
