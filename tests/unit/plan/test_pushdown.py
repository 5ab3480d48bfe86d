"""Where filters end up: as near to the scans as the rows allow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import scan, stages

from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import dataset_with, relation_in
from millrace.plan.nodes.filter import Filter
from millrace.sql.expressions import parse


@pytest.fixture
def orders(tmp_path: Path) -> Dataset:
    table = pa.table({"cust": range(100), "amount": range(100), "note": ["x"] * 100})
    pq.write_table(table, tmp_path / "orders.parquet")
    return scan(tmp_path / "orders.parquet")


@pytest.fixture
def customers(tmp_path: Path) -> Dataset:
    pq.write_table(pa.table({"cust": range(50), "nation": ["n"] * 50}), tmp_path / "c.parquet")
    return scan(tmp_path / "c.parquet")


def filters(dataset: Dataset) -> list[str]:
    """Filters with what stands directly below each."""
    lines = [line.strip() for line in stages(dataset)]
    return [
        f"{line} | {below.split(',')[0]}"
        for line, below in pairwise(lines)
        if line.startswith("filter")
    ]


def test_parts_of_a_filter_go_to_the_side_they_are_about(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust")

    assert filters(joined.filter("amount > 3 AND nation = 'n' AND note < nation")) == [
        "filter amount > 3 | scan parquet",
        "filter nation = 'n' | scan parquet",
        "filter note < nation | inner join on cust = cust",
    ]


def test_a_filter_on_a_key_goes_to_both_sides(orders: Dataset, customers: Dataset) -> None:
    inner = orders.join(customers, on="cust").filter("cust > 3")
    left = orders.join(customers, on="cust", how="left").filter("cust > 3")
    full = orders.join(customers, on="cust", how="full").filter("cust > 3")

    assert filters(inner) == ["filter cust > 3 | scan parquet"] * 2
    assert filters(left) == ["filter cust > 3 | scan parquet"] * 2
    assert filters(full) == ["filter cust__ > 3 | full join on cust = cust"]


def test_what_an_outer_join_fills_with_null_is_filtered_above_it(
    orders: Dataset, customers: Dataset
) -> None:
    left = orders.join(customers, on="cust", how="left").filter("nation IS NULL")
    right = orders.join(customers, on="cust", how="right").filter("amount IS NULL")

    assert filters(left) == ["filter nation IS NULL | left join on cust = cust"]
    assert filters(right) == ["filter amount IS NULL | right join on cust = cust"]


def test_a_filter_follows_a_column_under_its_other_name(orders: Dataset) -> None:
    renamed = orders.rename(amount="sum", cust="amount").filter("sum > 3 AND note != '\"sum\"'")

    assert filters(renamed) == [
        "filter amount > 3 | filter note <> '\"sum\"'",
        "filter note <> '\"sum\"' | scan parquet",
    ]


def test_a_renamed_expression_keeps_texts_that_look_like_names() -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.string()})

    found = parse("a = '\"a\"' AND b = 'it''s \"b\"'", schema, call="").renamed(
        {"a": "b", "b": "c"}
    )

    assert found.columns == {"b", "c"}
    assert "'\"a\"'" in found.sql
    assert '"c"' in found.sql


def test_a_filter_on_keys_goes_below_the_groups_and_others_do_not(orders: Dataset) -> None:
    grouped = orders.group_by("cust").agg(n="count(*)")

    assert filters(grouped.filter("cust > 3")) == ["filter cust > 3 | scan parquet"]
    assert filters(grouped.filter("n > 3")) == ["filter n > 3 | final aggregate by cust: COUNT(*)"]
    assert filters(orders.agg(n="count(*)").filter("1 > 2")) == [
        "filter 1 > 2 | final aggregate: COUNT(*)"
    ]


def test_filters_stay_behind_what_they_must_not_pass(orders: Dataset) -> None:
    assert filters(orders.durable().filter("cust > 3")) == ["filter cust > 3 | read stage 0"]
    assert filters(orders.limit(9).filter("cust > 3")) == ["filter cust > 3 | limit 9"]
    assert filters(orders.offset(9).filter("cust > 3")) == ["filter cust > 3 | offset 9"]
    assert filters(orders.sort("cust").limit(9).filter("cust > 3")) == [
        "filter cust > 3 | sort by cust"
    ]
    assert filters(orders.with_columns(cust="cust + 1").filter("cust > 3"))[0].startswith(
        "filter cust > 3 | project"
    )


def test_filters_pass_sorts_unions_and_repartitions(orders: Dataset) -> None:
    assert filters(orders.sort("cust").filter("cust > 3")) == ["filter cust > 3 | scan parquet"]
    assert (
        filters(orders.union(orders).filter("cust > 3")) == ["filter cust > 3 | scan parquet"] * 2
    )
    assert filters(orders.repartition(3).filter("cust > 3")) == ["filter cust > 3 | scan parquet"]


def test_a_filter_that_could_fail_is_not_moved_to_rows_it_was_not_written_for(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust", how="semi")

    assert filters(joined.filter("100 DIV amount > 3")) == [
        "filter 100 DIV amount > 3 | semi join on cust = cust"
    ]


PAIRS = "(amount = 1 AND nation = 'a' AND note < nation) OR (amount = 2 AND nation = 'b')"


def test_what_a_filter_over_both_sides_implies_of_each_goes_down(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust")

    assert filters(joined.filter(PAIRS))[:2] == [
        "filter (amount = 1) OR (amount = 2) | scan parquet",
        "filter (nation = 'a') OR (nation = 'b') | scan parquet",
    ]
    assert len(filters(joined.filter("amount = 1 OR note < nation"))) == 1


@pytest.mark.parametrize(
    ("how", "left", "right"),
    [
        ("inner", True, True),
        ("semi", True, True),
        ("left", False, True),
        ("anti", False, True),
        ("right", True, False),
        ("full", False, False),
    ],
)
def test_a_join_s_condition_leaves_out_rows_that_need_a_partner(
    orders: Dataset, customers: Dataset, how: str, *, left: bool, right: bool
) -> None:
    expected = ["filter (amount = 1) OR (amount = 2) | scan parquet"] if left else []
    expected += ["filter (nation = 'a') OR (nation = 'b') | scan parquet"] if right else []

    assert filters(orders.join(customers, on="cust", how=how, condition=PAIRS)) == expected


def test_a_condition_on_a_column_that_both_sides_have_finds_its_side(orders: Dataset) -> None:
    other = orders.select("cust AS other", "amount")
    joined = orders.join(other, left_on="cust", right_on="other", condition="amount_right > 7")

    assert filters(joined) == ["filter amount > 7 | scan parquet"]


def test_a_condition_that_could_fail_stays_whole(orders: Dataset, customers: Dataset) -> None:
    joined = orders.join(customers, on="cust", condition="1 / amount > 2 AND nation = 'a'")

    assert filters(joined) == []


def test_parts_that_cannot_fail_move_and_the_others_stay_in_their_order(
    orders: Dataset, customers: Dataset
) -> None:
    joined = orders.join(customers, on="cust")

    assert filters(
        joined.filter("amount > 3 AND 9 DIV amount > 1 AND nation = 'n' AND 9 % amount > 0")
    ) == [
        "filter amount > 3 | scan parquet",
        "filter nation = 'n' | scan parquet",
        "filter 9 DIV amount > 1 AND 9 % amount > 0 | inner join on cust = cust",
    ]


def test_a_filter_of_mixed_parts_is_parted_by_the_planner_too(
    orders: Dataset, customers: Dataset
) -> None:
    joined = relation_in(orders.join(customers, on="cust"))
    mixed = parse("9 DIV amount > 1 AND nation = 'n'", joined.node.schema, call="filter")
    whole = dataset_with(orders, joined.over(Filter(joined.node, mixed)))

    assert filters(whole) == [
        "filter nation = 'n' | scan parquet",
        "filter 9 DIV amount > 1 | inner join on cust = cust",
    ]


@pytest.mark.parametrize(
    ("how", "condition", "kind"),
    [
        ("left", "nation = 'n'", "inner"),
        ("left", "nation IS NOT NULL", "inner"),
        ("left", "nation LIKE 'n%' OR upper(nation) <> note", "inner"),
        ("left", "NOT (nation IN ('a', 'b'))", "inner"),
        ("left", "coalesce(nation, 'n') = 'n'", "left"),
        ("left", "nation IS NULL", "left"),
        ("left", "nation <=> note", "left"),
        ("left", "nation = 'n' OR amount > 3", "left"),
        ("left", "CASE WHEN nation = 'n' THEN true ELSE amount > 3 END", "left"),
        ("right", "amount > 3", "inner"),
        ("full", "amount > 3", "left"),
        ("full", "nation = 'n'", "right"),
        ("full", "nation < note", "inner"),
        ("full", "cust > 3", "full"),
    ],
)
def test_an_outer_join_whose_unmatched_rows_are_dropped_is_a_stricter_one(
    orders: Dataset, customers: Dataset, how: str, condition: str, kind: str
) -> None:
    lines = stages(orders.join(customers, on="cust", how=how).filter(condition))

    assert any(f"{kind} join on" in line for line in lines)


def test_a_filter_on_one_key_is_copied_to_the_other_side(
    orders: Dataset, customers: Dataset
) -> None:
    other = customers.rename(cust="id")
    inner = orders.join(other, left_on="cust", right_on="id")
    left = orders.join(other, left_on="cust", right_on="id", how="left")

    assert filters(inner.filter("id > 3")) == ["filter cust > 3 | scan parquet"] * 2
    assert filters(left.filter("cust > 3")) == ["filter cust > 3 | scan parquet"] * 2
    assert filters(left.filter("id IS NULL")) == ["filter id IS NULL | left join on cust = id"]


def test_a_filter_on_a_key_of_floats_stays_on_its_side_as_zeros_are_equal_and_not_the_same(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"a": [0.0], "b": [-0.0]}), tmp_path / "f.parquet")
    floats = scan(tmp_path / "f.parquet")
    joined = floats.join(floats.select("a AS c", "b AS d"), left_on="a", right_on="d")

    assert filters(joined.filter("a > 3")) == ["filter a > 3 | scan parquet"]


def test_a_filter_on_a_calculated_column_passes_a_join_and_stays_above_a_scan(
    orders: Dataset, customers: Dataset
) -> None:
    made = orders.join(customers, on="cust").with_columns(big="upper(nation)", same="amount")

    assert filters(made.filter("big = 'N' AND same > 3")) == [
        "filter amount > 3 | scan parquet",
        "filter (UPPER(nation)) = 'N' | scan parquet",
    ]
    assert filters(orders.with_columns(big="upper(note)").filter("big = 'X'"))[0].startswith(
        "filter big = 'X' | project"
    )
