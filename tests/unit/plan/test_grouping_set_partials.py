"""Several sets of keys: rows are aggregated once, and larger groups from smaller ones."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from tests.unit.plan.test_stages import CUT_UP
from tests.unit.statement_kit import LocalRows, of_table, run_operators, sql_relation

from millrace.plan.nodes.aggregate import GroupingSetPartials, PartialAggregate
from millrace.plan.nodes.exchange import Exchange
from millrace.plan.nodes.node import Node, with_new_children
from millrace.plan.nodes.row_makers.expand import Expand
from millrace.plan.nodes.union import Union
from millrace.plan.planner.column_pruning import prune
from millrace.plan.planner.exchanges import insert_exchanges

ROWS = 400
TABLE = pa.table(
    {
        "a": [None if n % 7 == 0 else n % 5 for n in range(ROWS)],
        "b": ["x", "y", None, "z"] * (ROWS // 4),
        "c": [(-0.0, 0.0, 1.5, None)[n % 4] for n in range(ROWS)],
        "i": pa.array([None if n % 11 == 0 else n for n in range(ROWS)], pa.int32()),
        "d": pa.array([Decimal(n).scaleb(-2) for n in range(ROWS)], pa.decimal128(7, 2)),
    }
)
SUMS = (
    "count(*) AS n, count(i) AS m, sum(i) AS s, sum(d) AS t, avg(i) AS u, avg(d) AS v, "
    "min(b) AS lo, max(d) AS hi"
)
SETS = [
    ("a, b, c", "ROLLUP(a, b, c)"),
    ("a, b", "CUBE(a, b)"),
    ("b, c", "GROUPING SETS ((b, c), (c), (b, c), (), (b))"),
    ("a, b, c", "GROUPING SETS ((a, b, c), (c, a))"),
]


def cut_up(text: str, table: pa.Table = TABLE) -> Node:
    plan = prune(sql_relation({"t": of_table(table)}, text).output())
    return insert_exchanges(plan, replace(CUT_UP, one_task_bytes_max=-1))


def in_two_tasks(node: Node) -> Node:
    """The plan with two tasks below each exchange, each with half of the rows."""
    if isinstance(node, Exchange):
        halves = tuple(_half(in_two_tasks(node.child), first=first) for first in (True, False))
        return Union(halves, tuple(node.schema.names))
    return with_new_children(node, [in_two_tasks(child) for child in node.children])


def _half(node: Node, *, first: bool) -> Node:
    if isinstance(node, LocalRows):
        assert isinstance(node.rows, pa.Table)
        middle = len(node.rows) // 2
        return of_table(node.rows[:middle] if first else node.rows[middle:])
    return with_new_children(node, [_half(child, first=first) for child in node.children])


def kinds(node: Node) -> set[type[Node]]:
    return {type(node)}.union(*map(kinds, node.children))


@pytest.mark.parametrize(("keys", "sets"), SETS)
def test_groups_of_all_sets_are_those_of_duckdb(keys: str, sets: str) -> None:
    text = f"SELECT {keys}, {SUMS} FROM t GROUP BY {sets}"
    plan = cut_up(text)

    ours = run_operators(in_two_tasks(plan)).to_pylist()

    assert GroupingSetPartials in kinds(plan)
    assert Expand not in kinds(plan), "rows are aggregated once"
    with duckdb.connect() as db:
        db.register("t", TABLE)
        theirs = db.sql(text).to_arrow_table().to_pylist()
    assert sorted(map(_shown, ours)) == sorted(map(_shown, theirs))


def _shown(row: dict[str, object]) -> list[str]:
    """A row as text; some numbers have other types in DuckDB, and its zeros may have a sign."""
    return [
        f"{float(value) + 0:.4f}" if isinstance(value, int | float | Decimal) else str(value)
        for value in row.values()
    ]


def test_no_rows_have_no_groups() -> None:
    plan = cut_up(f"SELECT a, {SUMS} FROM t GROUP BY ROLLUP(a, b)", TABLE[:0])

    assert GroupingSetPartials in kinds(plan)
    assert run_operators(in_two_tasks(plan)).num_rows == 0


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a, stddev(i) FROM t GROUP BY ROLLUP(a, b)",
        "SELECT a, sum(i) FROM t GROUP BY GROUPING SETS ((a), (b))",
    ],
    ids=["parts that do not add up", "no set with all keys"],
)
def test_other_groups_are_made_of_expanded_rows(query: str) -> None:
    plan = cut_up(query)

    assert kinds(plan) >= {Expand, PartialAggregate}
    assert GroupingSetPartials not in kinds(plan)
