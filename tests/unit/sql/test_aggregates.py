"""Aggregates: their types, in one step and in two, and what is refused."""

from __future__ import annotations

from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from tests.unit.sql.aggregate_kit import aggregated

from millrace.errors import UserError
from millrace.sql.aggregates.aggregate_expressions import parse_aggregate

ROWS = pa.table(
    {
        "k": pa.array([1, 1, 2, 2], pa.int32()),
        "a": pa.array([1, None, 3, 4], pa.int32()),
        "d": pa.array(
            [Decimal("1.00"), Decimal("2.01"), None, Decimal("3.00")], pa.decimal128(10, 2)
        ),
        "ok": [True, False, None, True],
    }
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("sum(a)", "bigint"),
        ("sum(d)", "decimal(20,2)"),
        ("avg(d)", "decimal(14,6)"),
        ("avg(a)", "double"),
        ("count(*)", "bigint"),
        ("sum(a) / count(*)", "double"),
        ("max(ok)", "boolean"),
        ("stddev(a)", "double"),
        ("median(d)", "double"),
        ("percentile_approx(d, 0.5)", "decimal(10,2)"),
        ("percentile_approx(a, array(0.5))", "array<int>"),
        ("first(ok ORDER BY a)", "boolean"),
        ("max_by(d, a)", "decimal(10,2)"),
        ("count(DISTINCT a, d)", "bigint"),
        ("collect_list(d)", "array<decimal(10,2)>"),
        ("collect_set(a)", "array<int>"),
    ],
)
def test_an_aggregate_has_the_type_spark_gives_it(text: str, kind: str) -> None:
    found = parse_aggregate("v", text, ROWS.schema, call="agg").type
    assert str(found.arrow or found) == kind


def test_parts_merge_to_the_whole() -> None:
    found = parse_aggregate("v", "avg(d) + count(*) - sum(a)", ROWS.schema, call="agg")
    connection = duckdb.connect()
    connection.register("t", ROWS)
    whole = ", ".join(f"{call.whole()} AS v{n}" for n, call in enumerate(found.calls))
    columns = [part for n, call in enumerate(found.calls) for part in call.partials(f"p{n}")]
    listed = ", ".join(f'{part.sql} AS "{part.name}"' for part in columns)
    merged = ", ".join(f"{call.merge(f'p{n}')} AS v{n}" for n, call in enumerate(found.calls))
    end = found.finish([f"v{n}" for n in range(len(found.calls))])
    one = f"SELECT {end} FROM (SELECT {whole} FROM t)"
    two = f"SELECT {end} FROM (SELECT {merged} FROM (SELECT {listed} FROM t GROUP BY k))"
    assert connection.execute(one).fetchall() == [(Decimal("-1.996667"),)]
    assert connection.execute(two).fetchall() == connection.execute(one).fetchall()


def test_equal_calls_are_made_once() -> None:
    found = parse_aggregate("v", "sum(a) + sum(a) * count(a)", ROWS.schema, call="agg")
    assert [call.function for call in found.calls] == ["sum", "count"]
    assert found.columns == {"a"}


@pytest.mark.parametrize(
    "text",
    [
        "count(distinct a)",
        "avg(distinct a)",
        "median(a)",
        "percentile(a, 0.5)",
        "percentile_approx(a, 0.5)",
        "collect_list(a order by k)",
    ],
)
def test_what_needs_all_rows_together_cannot_be_merged(text: str) -> None:
    calls = parse_aggregate("v", text, ROWS.schema, call="agg").calls
    assert [call.mergeable for call in calls] == [False]


def test_every_column_a_call_reads_is_named() -> None:
    text = "first(a order by d) filter (where ok) + count(k) + max_by(a, d)"
    assert parse_aggregate("v", text, ROWS.schema, call="agg").columns == {"a", "d", "ok", "k"}


def test_an_aggregate_is_shown_as_it_is_written() -> None:
    text = "SUM(a) FILTER(WHERE ok) + PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY a DESC)"
    assert parse_aggregate("v", text, ROWS.schema, call="agg").text == text


def test_what_a_filter_takes_out_is_not_evaluated() -> None:
    text = "sum(1 / (a - 1)) filter (where a > 1) + max_by(a, 1 / (a - 1)) filter (where a > 1)"
    (found,) = aggregated(ROWS.rename_columns(["g", "a", "d", "ok"]), [text]).to_pylist()[1:]
    assert found["c0"] == pytest.approx(1 / 2 + 1 / 3 + 3)


def test_a_sum_of_longs_overflows_in_one_step_and_in_two() -> None:
    table = pa.table({"g": pa.array([1, 1], pa.int32()), "a": [2**62, 2**62]})
    for split in (None, [0, 1]):
        with pytest.raises(duckdb.Error, match="out of range"):
            aggregated(table, ["sum(a)"], split=split)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a + 1", "the column a stands outside of an aggregate"),
        ("sum(a) + a", "the column a stands outside of an aggregate"),
        ("1 + 1", "there is no aggregate"),
        ("sum(sum(a))", "sum is an aggregate and has no place here"),
        ("sum(ok)", "sum needs a number"),
        ("sum(a, d)", "sum takes one argument"),
        ("sum(*)", "sum takes no *"),
        ("sum(a) filter (where a)", "FILTER needs a condition"),
        ("abs(a) filter (where ok)", "only aggregates take FILTER"),
        ("sum(a) over ()", "a window function has no place here"),
        ("sum(a) AS s", "a name has no place here"),
        ("last(a, k order by d)", "the second argument of last is true or false"),
        ("sum(a order by d)", "sum takes no ORDER BY"),
        ("sum(a) ignore nulls", "sum takes no IGNORE NULLS"),
        ("collect_list(distinct a order by d)", "DISTINCT and ORDER BY do not go together"),
        ("max(a) within group (order by d)", "max takes no WITHIN GROUP"),
        ("percentile_cont(0.5)", "percentile_cont needs WITHIN GROUP"),
        ("percentile(a, 1.5)", "a percentage is a number from 0 to 1"),
        ("percentile(a, d)", "a percentage is a number from 0 to 1"),
        ("percentile(a, array())", "a percentage is a number from 0 to 1"),
        ("percentile(a, 0.5, 2)", "percentile takes a value and a percentage"),
        ("percentile_approx(a, 0.5, 0)", "the accuracy is a whole number from 1"),
        ("median(ok)", "median needs a number"),
        ("percentile_approx(ok, 0.5)", "needs a number, a date or a timestamp"),
        ("approx_count_distinct(a)", "approx_count_distinct is not calculated here"),
        ("count_if(a)", "count_if needs a condition"),
        ("count(distinct *)", "count takes no * beside other words"),
        ("max_by(a)", "max_by takes two arguments"),
        ("collect_list(null)", "collect_list needs a value with a type"),
        ("collect_list(a) + 1", "is not a number"),
        ("medain(a)", "did you mean median?"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(text: str, what: str) -> None:
    with pytest.raises(UserError, match="in agg\\(v=") as error:
        parse_aggregate("v", text, ROWS.schema, call=f"agg(v={text!r})")
    assert what in str(error.value)
