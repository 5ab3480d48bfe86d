"""The order of inner joins: by sizes, with keys wherever conditions give some, and stable."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import BROADCAST, scan, stages

from millrace import Dataset
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node
from millrace.plan.planner.filter_pushdown import push_filters
from millrace.plan.planner.join_order import order_joins
from millrace.plan.planner.row_estimates import estimated_rows


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Dataset]:
    """A fact of 10,000 rows and three dimensions, of which one is reached through another."""
    columns = {
        "fact": {
            "f_day": [n % 365 for n in range(10_000)],
            "f_shop": [n % 100 for n in range(10_000)],
        },
        "days": {"day": range(365), "month": [n // 31 for n in range(365)]},
        "shops": {"shop": range(100), "s_town": [n % 20 for n in range(100)]},
        "towns": {"town": range(20), "name": [f"t{n}" for n in range(20)]},
    }
    for name, values in columns.items():
        pq.write_table(pa.table(values), tmp_path / f"{name}.parquet")
    return {name: scan(tmp_path / f"{name}.parquet") for name in columns}


def crossed(*parts: Dataset) -> Dataset:
    first, *rest = parts
    for part in rest:
        first = first.join(part, how="cross")
    return first


def joins(plan: Node) -> list[str]:
    """The joins of a plan after ordering, the last one first."""
    below = [line for child in plan.children for line in joins(child)]
    return [plan.describe(), *below] if isinstance(plan, Join) else below


def ordered(dataset: Dataset) -> Node:
    return push_filters(order_joins(push_filters(dataset._plan)))


EQUALITIES = "f_day = day AND f_shop = shop AND s_town = town"


def test_conditions_of_a_cross_join_become_keys(tables: dict[str, Dataset]) -> None:
    query = crossed(*tables.values()).filter(EQUALITIES)

    plan = ordered(query)

    assert all(line.startswith("inner join on") for line in joins(plan))
    assert plan.schema.equals(query._plan.schema)


def test_an_order_that_connects_inputs_only_later_leaves_no_cross_join(
    tables: dict[str, Dataset],
) -> None:
    far = crossed(tables["towns"], tables["days"], tables["shops"], tables["fact"])

    assert "cross" not in " ".join(joins(ordered(far.filter(EQUALITIES))))
    assert str(joins(ordered(far.filter("f_day = day")))).count("cross join") == 2


def test_the_smallest_results_are_joined_first(tables: dict[str, Dataset]) -> None:
    query = crossed(*tables.values()).filter(f"{EQUALITIES} AND name = 't7'")

    lines = joins(ordered(query))

    assert lines == [
        "inner join on f_day = day",
        "inner join on f_shop = shop",
        "inner join on s_town = town",
    ], "the one town decides the shops, and these the rows of the fact"


def test_an_order_that_is_about_as_good_stays_as_it_is_written(tables: dict[str, Dataset]) -> None:
    query = (
        tables["fact"]
        .join(tables["days"], left_on="f_day", right_on="day")
        .join(tables["shops"], left_on="f_shop", right_on="shop")
    )

    assert order_joins(query._plan) is query._plan


def test_computed_and_cast_sides_of_an_equality_are_keys(tables: dict[str, Dataset]) -> None:
    fact = tables["fact"].select("f_day", "CAST(f_shop AS STRING) AS code")
    query = crossed(fact, tables["days"]).filter("coalesce(f_day, 0) = CAST(day AS DOUBLE)")
    joined = joins(ordered(query))

    assert len(joined) == 1
    assert joined[0].startswith("inner join on __key")


def test_equal_columns_connect_inputs_through_a_third_one(tables: dict[str, Dataset]) -> None:
    other = tables["days"].select("day AS other_day", "month AS other_month")
    query = crossed(tables["days"], other, tables["fact"]).filter(
        "f_day = day AND f_day = other_day"
    )

    assert sorted(joins(ordered(query))) == [
        "inner join on day = f_day",
        "inner join on day = other_day",
    ]


def test_a_condition_that_can_fail_is_asked_when_all_is_joined(tables: dict[str, Dataset]) -> None:
    query = crossed(tables["fact"], tables["days"]).filter("1 / month > 0 AND f_day = day")

    lines = [line.strip() for line in stages(query, BROADCAST)]

    assert any(line.startswith("inner join on f_day = day") for line in lines)
    assert any(line.startswith("filter 1 / month > 0") for line in lines)


def test_sizes_are_guessed_by_the_bounds_of_footers(tables: dict[str, Dataset]) -> None:
    fact, days = tables["fact"], tables["days"]

    assert estimated_rows(fact._plan) == 10_000
    assert 20 < estimated_rows(fact.filter("f_day = 7")._plan) < 40
    assert 900 < estimated_rows(fact.filter("f_day < 36")._plan) < 1100
    assert 50 < estimated_rows(fact.filter("f_day BETWEEN 10 AND 12")._plan) < 110
    assert estimated_rows(days.join(fact, left_on="day", right_on="f_day")._plan) == 10_000


def test_tables_are_joined_by_columns_that_were_written_as_equal(
    tables: dict[str, Dataset],
) -> None:
    fact, days = tables["fact"], tables["days"]
    more = days.rename(day="more_day", month="more_month").filter("more_month = 3")
    query = crossed(days, more, fact).filter("day = more_day AND more_day = f_day")

    last, first = joins(ordered(query))

    assert "day = more_day" in first or "more_day = day" in first
    assert "more_day = f_day" in last


@pytest.fixture
def returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Dataset]:
    """Sales, of which a tenth was returned: a return has the two keys of its sale."""
    monkeypatch.setattr("millrace.plan.planner.join_order._BROADCAST_ROWS", 500)
    days = {"day": range(360), "month": [n // 30 for n in range(360)]}
    sales = {
        "s_ticket": [n // 5 for n in range(10_000)],
        "s_item": [n % 1_000 for n in range(10_000)],
        "s_day": [n % 360 for n in range(10_000)],
    }
    returns = {
        "r_ticket": sales["s_ticket"][::10],
        "r_item": sales["s_item"][::10],
        "r_day": [n % 360 for n in range(1_000)],
    }
    columns = {"sales": sales, "returns": returns, "days": days}
    for name, values in columns.items():
        pq.write_table(pa.table(values), tmp_path / f"{name}.parquet")
    return {name: scan(tmp_path / f"{name}.parquet") for name in columns}


def test_keys_of_one_table_have_no_more_values_together_than_the_table_has_rows(
    returned: dict[str, Dataset],
) -> None:
    both = returned["sales"].join(
        returned["returns"], left_on=["s_ticket", "s_item"], right_on=["r_ticket", "r_item"]
    )

    assert estimated_rows(both._plan) == 1_000, "each return has a sale"


def test_large_tables_meet_their_small_selective_sides_before_each_other(
    returned: dict[str, Dataset],
) -> None:
    month = returned["days"].filter("month = 3")
    other = month.rename(day="other_day", month="other_month")
    query = crossed(returned["sales"], returned["returns"], month, other).filter(
        "s_ticket = r_ticket AND s_item = r_item AND s_day = day AND r_day = other_day"
    )

    last, *first = joins(ordered(query))

    assert last.startswith("inner join on s_ticket = r_ticket, s_item = r_item")
    assert sorted(first) == ["inner join on r_day = other_day", "inner join on s_day = day"]
