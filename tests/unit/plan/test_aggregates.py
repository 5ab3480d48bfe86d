"""Aggregates: their types, in one step and in two, and what is refused."""

from __future__ import annotations

from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.plan.aggregates import parse_aggregate

ROWS = pa.table(
    {
        "k": [1, 1, 2, 2],
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
    ],
)
def test_an_aggregate_has_the_type_spark_gives_it(text: str, kind: str) -> None:
    assert str(parse_aggregate("v", text, ROWS.schema, call="agg").type) == kind


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


def test_distinct_counts_cannot_be_merged() -> None:
    calls = parse_aggregate("v", "count(distinct a)", ROWS.schema, call="agg").calls
    assert [call.mergeable for call in calls] == [False]


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
        ("sum(a) filter (where ok)", "FILTER is not supported"),
        ("sum(a) over ()", "a window function has no place here"),
        ("sum(a) AS s", "a name has no place here"),
        ("avg(distinct a)", "avg does not take DISTINCT"),
        ("median(a)", "the function median is not known"),
    ],
)
def test_what_cannot_be_aggregated_is_refused(text: str, what: str) -> None:
    with pytest.raises(UserError, match="in agg\\(v=") as error:
        parse_aggregate("v", text, ROWS.schema, call=f"agg(v={text!r})")
    assert what in str(error.value)
