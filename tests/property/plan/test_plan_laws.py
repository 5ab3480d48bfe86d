"""The law of the planner: a plan with filters moved and joins ordered has the rows of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.plan.test_stages import scan

from millrace import Dataset
from millrace.engine.query_writer import query
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.read_stage import leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.column_pruning import prune
from millrace.plan.planner.filter_pushdown import push_filters
from millrace.plan.planner.join_order import order_joins

TABLES = {
    "r": pa.table(
        {"a": [1, 2, 2, None, 5], "b": [0, 1, None, 3, 4], "s": ["x", "y", None, "x", ""]}
    ),
    "t": pa.table({"a": [2, 2, 5, None], "b": [7, None, 0, 1], "s": ["y", "x", "z", None]}),
    "u": pa.table({"a": [1, 5, 6], "b": [1, 1, None], "s": [None, "x", "q"]}),
}
_CONDITIONS = st.sampled_from(
    [
        "a > 1",
        "b IS NULL",
        "b IS NOT NULL AND s <> 'x'",
        "a = b",
        "s = 'x' OR a < 3",
        "s LIKE '%x%' AND a >= 1",
        "coalesce(b, 1) = 1",
        "a IN (1, 2)",
        "NOT (b > 0)",
        "a <=> b",
        "length(s) > 0 AND b < a",
        "CASE WHEN b > 0 THEN true ELSE a > 2 END",
        "a BETWEEN 1 AND b",
    ]
)
_JOINS = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    folder = tmp_path_factory.mktemp("tables")
    for name, table in TABLES.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return {name: scan(folder / f"{name}.parquet") for name in TABLES}


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


Step = Callable[[dict[str, Dataset], Dataset], Dataset]


def _filtered(condition: str) -> Step:
    return lambda _tables, rows: rows.filter(condition)


def _joined(how: str, name: str, key: str) -> Step:
    def step(tables: dict[str, Dataset], rows: Dataset) -> Dataset:
        other = tables[name].rename(a="a2", b="b2", s="s2")
        return (
            rows.select("a", "b", "s")
            .join(other, left_on=key, right_on=f"{key}2", how=how)
            .select(*(["a", "b", "s"] if how in ("semi", "anti") else ["a", "b2 AS b", "s2 AS s"]))
        )

    return step


def _joined_if(how: str, name: str, condition: str) -> Step:
    def step(tables: dict[str, Dataset], rows: Dataset) -> Dataset:
        other = tables[name].rename(a="a2", b="b2", s="s2")
        keys = {"left_on": "a", "right_on": "a2", "how": how, "condition": condition}
        both = rows.select("a", "b", "s").join(other, **keys)
        return both.select("a", "b", *(["s"] if how in ("semi", "anti") else ["s2 AS s"]))

    return step


def _crossed(name: str, condition: str) -> Step:
    def step(tables: dict[str, Dataset], rows: Dataset) -> Dataset:
        other = tables[name].rename(a="a2", b="b2", s="s2")
        both = rows.select("a", "b", "s").join(other, how="cross").filter(condition)
        return both.select("a2 AS a", "b", "coalesce(s, s2) AS s")

    return step


_STEPS = st.one_of(
    st.builds(_filtered, _CONDITIONS),
    st.builds(_filtered, _CONDITIONS),
    st.builds(_joined, _JOINS, st.sampled_from(list(TABLES)), st.sampled_from(["a", "b", "s"])),
    st.builds(
        _joined_if,
        st.sampled_from(["inner", "left", "semi", "anti"]),
        st.sampled_from(list(TABLES)),
        st.sampled_from(["b2 > b", "s2 = s OR b2 = 1", "b2 = 1 AND s <> s2"]),
    ),
    st.builds(
        _crossed,
        st.sampled_from(list(TABLES)),
        st.sampled_from(["a = a2", "b = a2 AND s = s2", "a2 > b", "a = a2 OR b = b2", "true"]),
    ),
    st.just(lambda _tables, rows: rows.with_columns(b="coalesce(a, b)", s="substr(s, 1, 1)")),
    st.just(lambda _tables, rows: rows.group_by("a", "s").agg(b="count(*)")),
    st.just(lambda tables, rows: rows.select("a", "b", "s").union(tables["u"])),
    st.just(lambda _tables, rows: rows.window(partition_by="a", order_by="s", b="count(*)")),
)


def rows_of(engine: duckdb.DuckDBPyConnection, plan: Node) -> list[str]:
    """The rows of a plan in one query, in an order of their own."""
    for number, leaf in enumerate(leaves(plan)):
        assert isinstance(leaf, Scan)
        name = Path(leaf.source.shapes[0].file.path).stem
        engine.register(f"input_{number}", TABLES[name].select(list(leaf.columns)))
    names = ", ".join(f'"{name}"' for name in plan.schema.names)
    return sorted(map(repr, engine.sql(f"SELECT {names} FROM ({query(plan)})").fetchall()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(list(TABLES)), st.lists(_STEPS, min_size=2, max_size=6))
def test_a_plan_with_filters_moved_and_joins_ordered_has_the_same_rows(
    tables: dict[str, Dataset], engine: duckdb.DuckDBPyConnection, start: str, steps: list[Step]
) -> None:
    rows = tables[start]
    for step in steps:
        rows = step(tables, rows)
    plan = rows._plan

    moved = prune(push_filters(order_joins(prune(push_filters(plan)))))

    assert moved.schema.equals(plan.schema)
    assert rows_of(engine, moved) == rows_of(engine, plan)
