"""Text that is deep, long or wide works up to a limit, and is refused by its name beyond."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.engine.memory_kit import OneTask, rows

from millrace.config import Config
from millrace.errors import UserError
from millrace.plan.planner.exchanges import PlanLimits
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import plan_stages
from millrace.sql.expressions import as_is, parse

TABLE = pa.table({"a": list(range(8)), "t": [str(n) for n in range(8)]})
ORDERS: Any = rows(TABLE)
SIZES = PlanLimits(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=1, partitions_max=8
)
DEPTH = Config().expression_depth_max
NESTED: list[Callable[[int], str]] = [
    lambda depth: "(" * depth + "a" + ")" * depth,
    lambda depth: "abs(" * depth + "a" + ")" * depth,
    lambda depth: " + ".join(["a"] * (depth + 1)),
    lambda depth: "- " * depth + "a",
    lambda depth: "if(a > 3, " * (depth - 1) + "a" + ", 1)" * (depth - 1),
]


@dataclass(frozen=True, slots=True)
class Limited(OneTask):
    """A runner with other limits."""

    limits: Config = field(default_factory=Config)

    @property
    def config(self) -> Config:
        return self.limits


@pytest.mark.parametrize("nested", NESTED)
def test_what_nests_up_to_the_limit_is_calculated_and_one_more_is_refused(
    nested: Callable[[int], str],
) -> None:
    assert ORDERS.select(f"{nested(DEPTH)} AS x").to_arrow().num_rows == 8
    with pytest.raises(
        UserError, match=f"{DEPTH + 1:,} levels .*; expression_depth_max is {DEPTH}"
    ):
        ORDERS.select(f"{nested(DEPTH + 1)} AS x")


def test_the_limit_is_the_workspaces_own() -> None:
    small = rows(TABLE, Limited(limits=Config(expression_depth_max=3)))
    assert small.filter("((a > 3))").count() == 4
    with pytest.raises(UserError, match="expression_depth_max is 3"):
        small.filter("((((a > 3))))")


def test_twenty_thousand_brackets_are_refused_and_not_a_crash() -> None:
    for text in ("(" * 20_000, "(" * 20_000 + "a" + ")" * 20_000, "not " * 20_000 + "true"):
        with pytest.raises(UserError, match="expression_depth_max"):
            ORDERS.filter(text)


@pytest.mark.parametrize(
    "count", [200, pytest.param(5000, marks=pytest.mark.slow)], ids=["few", "5000"]
)
@pytest.mark.parametrize("part", ["a = {}", "cast(t as int) = {}"])
def test_thousands_of_conditions_are_one_filter(part: str, count: int) -> None:
    text = " OR ".join(part.format(n) for n in range(4, 4 + count))
    assert ORDERS.filter(text).count() == 4
    assert ORDERS.filter(text.replace("=", "<>").replace("OR", "AND")).count() == 4


def test_what_many_conditions_imply_of_a_side_moves_there() -> None:
    other = rows(TABLE.rename_columns(["a", "u"]))
    text = " OR ".join(f"(t = '{n}' AND u = '{n}')" for n in range(100))
    joined = ORDERS.join(other, on="a", condition=text)
    assert joined.count() == 8
    assert "filter" in explain(plan_stages(joined._plan, SIZES))


def test_conditions_that_can_fail_do_not_double_with_each_other() -> None:
    text = " AND ".join(["cast(t as int) < 3"] * 100)
    assert len(parse(text, TABLE.schema, call="x").sql) < 100 * 1000


def test_an_expression_that_multiplies_is_refused_by_its_size() -> None:
    nested = "t"
    for _ in range(20):
        nested = f"cast(cast({nested} as int) as string)"
    with pytest.raises(UserError, match="expression_sql_chars_max is 16,777,216"):
        ORDERS.select(f"{nested} AS x")


def test_operations_follow_one_another_up_to_the_limit() -> None:
    limit = 200
    data = rows(TABLE, Limited(limits=Config(plan_depth_max=limit)))
    for n in range(limit - 6):
        data = data.filter(f"a > {-n}") if n % 2 else data.with_columns(a="a + 1")
    assert explain(plan_stages(data._plan, SIZES)).count("project") >= limit // 2 - 4
    assert data.count() == 8
    for _ in range(5):
        data = data.with_columns(a="a + 1")
    with pytest.raises(UserError, match="found: 201; plan_depth_max is 200"):
        data.with_columns(a="a + 1")


@pytest.mark.slow
def test_fifteen_hundred_operations_are_refused_by_name() -> None:
    data = ORDERS
    with pytest.raises(UserError, match="plan_depth_max is 500"):  # noqa: PT012 - a loop of calls
        for n in range(1500):
            data = data.filter(f"a > {-n}")
    assert explain(plan_stages(data._plan, SIZES)).count("filter") == 499


def test_groups_of_groups_are_planned_in_no_time() -> None:
    data = ORDERS
    for _ in range(60):
        data = data.group_by("a", "t").agg()
    assert len(plan_stages(data._plan, SIZES)) >= 1


def test_a_dataset_joined_with_itself_again_and_again_is_refused_by_name() -> None:
    data = ORDERS
    with pytest.raises(UserError, match="plan_operations_max is 10,000"):  # noqa: PT012
        for _ in range(40):
            data = data.union(data)


@pytest.mark.slow
def test_five_thousand_aggregates_are_calculated() -> None:
    summed = ORDERS.agg(**{f"x{n}": f"sum(a + {n})" for n in range(5000)}).to_arrow()
    assert summed.num_columns == 5000


def test_a_column_that_is_passed_on_is_written_as_if_it_was_read() -> None:
    schema = pa.schema({"a b`c": pa.int64(), "d": pa.date64(), "s": pa.timestamp("s")})
    for each in schema:
        name, column = as_is(each)
        read = parse("`" + name.replace("`", "``") + "`", schema, call="x")
        assert (column.sql, column.text, column.columns) == (read.sql, read.text, read.columns)


def test_python_s_stack_stays_as_it_is_for_what_people_write() -> None:
    before = sys.getrecursionlimit()
    ORDERS.filter("((a + 1) * 2 > 3 OR (t = 'x' AND a < 5))").count()
    assert sys.getrecursionlimit() == before
