"""Window calls inside a select list, each with partitions, an order and a frame of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from sqlglot import exp
from tests.unit.sql.example_kit import GivenRows, selected

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_windows import with_window_columns
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.project import Project
from millrace.plan.nodes.window import Window
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused, NotNative

ROWS = pa.table(
    {
        "k": ["a", "b", "a", "b", "a"],
        "t": pa.array([1, 2, 3, 4, 5], pa.int32()),
        "v": pa.array([10, None, 30, 40, 50], pa.int32()),
    }
)


def windows_of(node: Node) -> list[Window]:
    below = [window for child in node.children for window in windows_of(child)]
    return [*below, node] if isinstance(node, Window) else below


def built(*texts: str) -> tuple[Node, list[exp.Expression]]:
    return with_window_columns(BuildContext(), GivenRows(ROWS), [read(text) for text in texts])


def test_calls_over_one_window_share_it_and_others_have_their_own() -> None:
    node, trees = built(
        "sum(v) OVER (PARTITION BY k ORDER BY t) / count(*) OVER (PARTITION BY k ORDER BY t)",
        "sum(v) OVER (PARTITION BY k ORDER BY t)",
        "max(v) OVER (PARTITION BY k ORDER BY t ROWS 1 PRECEDING)",
        "rank() OVER (ORDER BY t DESC)",
    )
    assert [len(window.columns) for window in windows_of(node)] == [2, 1, 1]
    assert [window.keys for window in windows_of(node)] == [("k",), ("k",), ()]
    assert node.schema.names == [*ROWS.column_names, *(f"__window_{n}" for n in range(4))]
    assert trees[0].find(exp.Window) is None
    assert trees[1].name == "__window_0"


def test_keys_that_are_calculated_are_columns_below_all_windows(tmp_path: Path) -> None:
    texts = [
        "sum(v) OVER (PARTITION BY t % 2 ORDER BY -t)",
        "count(*) OVER (PARTITION BY t % 2)",
        "row_number() OVER (PARTITION BY upper(k) ORDER BY v + t, t)",
    ]
    node, _ = built(*texts)
    first = windows_of(node)[0].child
    assert isinstance(first, Project)
    assert len(first.columns) == len(ROWS.column_names) + 4
    found = selected(["t", *texts], ROWS, tmp_path)
    by_row = {row["c0"]: tuple(row.values())[1:] for row in found.to_pylist()}
    assert by_row == {
        1: (90, 3, 1),
        2: (40, 2, 1),
        3: (80, 3, 2),
        4: (40, 2, 2),
        5: (50, 3, 3),
    }


def test_a_constant_orders_nothing(tmp_path: Path) -> None:
    texts = ["rank() OVER (ORDER BY 'x')", "sum(v) OVER (PARTITION BY 1 ORDER BY NULL)"]
    found = selected(texts, ROWS, tmp_path)
    assert found.to_pydict() == {"c0": [1] * 5, "c1": [130] * 5}


def test_any_aggregate_runs_over_a_frame(tmp_path: Path) -> None:
    over = "OVER (PARTITION BY k ORDER BY t)"
    texts = [
        f"collect_list(v) {over}",
        f"listagg(t, '-') {over}",
        f"corr(t, v) {over}",
        f"max_by(v, t) {over}",
        "median(v) OVER (PARTITION BY k)",
        f"count_if(v > 10) FILTER (WHERE t < 5) {over}",
        f"first(v) IGNORE NULLS {over}",
    ]
    found = selected(["t", *texts], ROWS, tmp_path).sort_by("c0").to_pylist()
    assert [row["c1"] for row in found] == [[10], [], [10, 30], [40], [10, 30, 50]]
    assert [row["c2"] for row in found] == ["1", "2", "1-3", "2-4", "1-3-5"]
    assert [row["c3"] for row in found] == [None, None, pytest.approx(1), None, pytest.approx(1)]
    assert [row["c4"] for row in found] == [10, None, 30, 40, 50]
    assert [row["c5"] for row in found] == [30, 40, 30, 40, 30]
    assert [row["c6"] for row in found] == [0, 0, 1, 1, 1]
    assert [row["c7"] for row in found] == [10, None, 10, 40, 10]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sum(v) OVER w", "named elsewhere"),
        ("lag(v, t) OVER (ORDER BY t)", "written out"),
        ("count(DISTINCT v) OVER (PARTITION BY k)", "DISTINCT"),
        ("upper(k) OVER (PARTITION BY k)", "no window function"),
        ("histogram_numeric(v, 5) OVER (PARTITION BY k)", "not calculated here"),
        ("median(v) OVER (PARTITION BY k ORDER BY t)", "no order"),
        ("sum(v) OVER (PARTITION BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)", "an order"),
        ("sum(v) OVER (ORDER BY t ROWS BETWEEN 1 + 1 PRECEDING AND CURRENT ROW)", "whole numbers"),
        ("first(v) FILTER (WHERE t > 1) OVER (ORDER BY t)", "takes no FILTER"),
    ],
)
def test_other_calls_are_left_to_spark(text: str, said: str) -> None:
    with pytest.raises(NotNative, match=said):
        built(text)


def test_only_the_calls_that_spark_alone_computes_run_there() -> None:
    asked: list[tuple[Sequence[tuple[str, Node]], object, str]] = []

    def on_spark(inputs: Sequence[tuple[str, Node]], sql: object, reason: str) -> Node:
        asked.append((inputs, sql, reason))
        return GivenRows(ROWS)

    texts = ["sum(v) OVER (PARTITION BY k)", "lag(v, 1 + 1) OVER (ORDER BY t)"]
    trees = [read(text) for text in texts]
    with_window_columns(BuildContext(on_spark=on_spark), GivenRows(ROWS), trees)
    ((inputs, sql, reason),) = asked
    ((name, below),) = inputs
    assert sql == "SELECT *, LAG(v, 1 + 1) OVER (ORDER BY t) AS `__window_1` FROM input_0"
    assert name == "input_0"
    assert below.schema.names == [*ROWS.column_names, "__window_0"]
    assert "written out" in reason


def test_a_rank_without_an_order_is_wrong_for_spark_too() -> None:
    with pytest.raises(ExpressionRefused, match="rank needs an order"):
        built("rank() OVER (PARTITION BY k)")
