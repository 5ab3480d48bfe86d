"""What a new user writes wrong is answered with what, found and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.runner_kit import NoRunner

from millrace.datasets.dataset import Dataset
from millrace.errors import UserError
from millrace.plan.nodes.map_batches import FunctionRows
from millrace.plan.relation import relation_of

SCHEMA = pa.schema(
    {"order_id": pa.int64(), "amount": pa.float64(), "nation": pa.string(), "day": pa.date32()}
)
ORDERS: Any = Dataset(relation_of(FunctionRows(SCHEMA)), NoRunner())

WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: ORDERS.sort("amount DESCC"), "did you mean DESC?"),
    (lambda: ORDERS.sort("amount downwards"), "write ASC or DESC behind it"),
    (lambda: ORDERS.sort(""), "write 'a DESC'"),
    (ORDERS.sort, "name a column"),
    (lambda: ORDERS.sort(9), "write 'a DESC'"),
    (lambda: ORDERS.sort("amuont"), "did you mean amount?"),
    (lambda: ORDERS.filter("amount >"), "write a column or a value after >"),
    (lambda: ORDERS.filter("(amount > 3"), r"add \)"),
    (lambda: ORDERS.filter("amount > 3)"), "or leave it out"),
    (lambda: ORDERS.filter("amount > 3 && order_id = 1"), "write AND"),
    (lambda: ORDERS.filter("nation = 'fr"), "add ' where it ends"),
    (lambda: ORDERS.filter("amount 5"), "write an operator"),
    (lambda: ORDERS.filter("amount fast"), "write an operator"),
    (lambda: ORDERS.filter("amount > 3 AS x"), "leave it out"),
    (lambda: ORDERS.filter("amount"), "compare it with something"),
    (lambda: ORDERS.filter(lambda row: row["amount"] > 3), "write it as Spark SQL in quotes"),
    (lambda: ORDERS.filter(1), "write it as Spark SQL in quotes"),
    (lambda: ORDERS.filter(""), "write a Spark SQL expression"),
    (lambda: ORDERS.filter("amount > 3\0"), "leave it out"),
    (lambda: ORDERS.filter("amount > 3; nation = 'fr'"), "pass one at a time"),
    (lambda: ORDERS.filter("sum(amount) > 3"), "use it in agg"),
    (lambda: ORDERS.filter("nation in (select a from nowhere)"), "ws.view"),
    (lambda: ORDERS.filter("cast(amount as integr) > 1"), "did you mean integer"),
    (lambda: ORDERS.filter("cast(amount int) > 1"), r"write cast\(value AS type\)"),
    (lambda: ORDERS.filter("case when amount > 1 then true"), "add END"),
    (lambda: ORDERS.filter("nation is 'fr'"), "write = to compare"),
    (lambda: ORDERS.select("explode(nation)"), "give it an array or a map"),
    (lambda: ORDERS.select("uuid()"), "map_batches, or in Spark"),
    (lambda: ORDERS.select("strlen(nation)"), "use length"),
    (lambda: ORDERS.select("lenn(nation)"), "did you mean len"),
    (lambda: ORDERS.filter("day > DATE '2020-02-30'"), "write a day of the calendar"),
    (lambda: ORDERS.select("uper(nation)"), "did you mean upper?"),
    (lambda: ORDERS.select("frobnicate(nation)"), "docs/functions.md"),
    (lambda: ORDERS.select("row_number()"), "use window"),
    (lambda: ORDERS.select("upper(nation, 3)"), "call it that way"),
    (lambda: ORDERS.select("nations"), "did you mean nation?"),
    (ORDERS.select, "name at least one"),
    (lambda: ORDERS.select(3), "write it as Spark SQL in quotes"),
    (lambda: ORDERS.with_columns(a=3), "write it as Spark SQL in quotes"),
    (lambda: ORDERS.with_columns(a="day - day"), "use datediff"),
    (lambda: ORDERS.with_columns(a="nation + 1"), "cast it to a number"),
    (lambda: ORDERS.rename(amuont="x"), "did you mean amount?"),
    (lambda: ORDERS.rename(amount=3), "give it a name"),
    (lambda: ORDERS.rename(amount="nation"), "give one an AS name"),
    (lambda: ORDERS.drop(3), "give the name of a column"),
    (lambda: ORDERS.drop(*SCHEMA.names), "keep at least one"),
    (lambda: ORDERS.group_by("contry"), "name one of these columns"),
    (ORDERS.agg, "count"),
    (lambda: ORDERS.agg(n="amount"), r"max\(amount\)"),
    (lambda: ORDERS.agg(n="3"), "write count"),
    (lambda: ORDERS.agg(n="sum(amount) AS n"), r"write agg\(n=...\)"),
    (lambda: ORDERS.agg(n="sum()"), "docs/functions.md shows"),
    (lambda: ORDERS.agg(n="bool_and(nation)"), "cast the argument"),
    (lambda: ORDERS.agg(n=sum), "write it as Spark SQL in quotes"),
    (lambda: ORDERS.agg({"n": "count(*)"}, n="sum(amount)"), "name it once"),
    (lambda: ORDERS.agg({3: "count(*)"}), "give it a name"),
    (lambda: ORDERS.agg({"": "count(*)"}), "give it a name"),
    (lambda: ORDERS.agg({"a\0b": "count(*)"}), "give it a name"),
    (lambda: ORDERS.agg({"n": 3}), "write it as Spark SQL in quotes"),
    (lambda: ORDERS.with_columns(["amount"]), "with_columns"),
    (lambda: ORDERS.with_columns({"a": "1"}, a="2"), "name it once"),
    (lambda: ORDERS.rename({"amount": "x"}, amount="y"), "name it once"),
    (lambda: ORDERS.rename({"amount": ""}), "give it a name"),
    (lambda: ORDERS.window({"n": "count(*)"}, n="sum(amount)"), "name it once"),
    (lambda: ORDERS.window("count(*)"), "window"),
    (ORDERS.window, "row_number"),
    (lambda: ORDERS.window(n="rank()"), "order_by"),
    (lambda: ORDERS.window(n="amount + 1"), "with_columns"),
    (lambda: ORDERS.window(order_by="day", n="lag()"), "call it with"),
    (lambda: ORDERS.window(order_by="day", n="sum(amount)", frame="2 rows"), "to fix"),
    (lambda: ORDERS.window(order_by="day", n="sum(amount)", frame=3), "to fix"),
    (lambda: ORDERS.join(ORDERS, on="ordr_id"), "did you mean order_id?"),
    (lambda: ORDERS.join(ORDERS, on=3), "give the name of a column"),
    (lambda: ORDERS.join(ORDERS, on="order_id", how="outter"), "use one of inner"),
    (lambda: ORDERS.join(ORDERS, on="order_id", condition="amount"), "compare it"),
    (lambda: ORDERS.join(pa.table({"a": [1]}), on="order_id"), "make one with ws.from_arrow"),
    (lambda: ORDERS.join("orders", on="order_id"), "make one with ws.from_arrow"),
    (lambda: ORDERS.join_asof(ORDERS, on="day", direction="back"), "use one of backward"),
    (lambda: ORDERS.join_asof(ORDERS, on="day", how="outer"), "use inner or left"),
    (lambda: ORDERS.join_asof(ORDERS, on="day", tolerance="soon"), "to fix"),
    (lambda: ORDERS.union(pa.table({"a": [1]})), "make one with ws.from_arrow"),
    (lambda: ORDERS.union(ORDERS.drop("day")), "to fix"),
    (lambda: ORDERS.limit("3"), "give 0 or more"),
    (lambda: ORDERS.limit(-1), "give 0 or more"),
    (lambda: ORDERS.repartition("4"), "to fix"),
    (lambda: ORDERS.repartition(0), "to fix"),
    (lambda: ORDERS.repartition(4, "amuont"), "did you mean amount?"),
    (lambda: ORDERS.drop_duplicates("amuont"), "did you mean amount?"),
    (lambda: ORDERS.map_batches("twice", SCHEMA), "to fix"),
    (lambda: ORDERS.map_batches(len, "a int"), "to fix"),
    (lambda: ORDERS.show("3"), "give 0 or more"),
]


@pytest.mark.parametrize(("call", "fix"), WRONG)
def test_a_wrong_call_says_what_and_what_to_do(call: Callable[[], object], fix: str) -> None:
    with pytest.raises(UserError) as error:
        call()

    said = str(error.value)
    what, way = said.split("\n  to fix: ")
    assert what.strip()
    assert re.search(fix, f"to fix {way}"), said
    if "AS" not in fix:
        assert " AS" not in way, said


def test_bad_syntax_is_shown_with_a_mark_below_the_place() -> None:
    with pytest.raises(UserError) as error:
        ORDERS.filter("amount > 3\nAND nation == == 'fr'")
    assert str(error.value).splitlines()[-3:] == [
        "  found: AND nation == == 'fr'",
        "                         ^",
        "  to fix: write a column or a value after ==",
    ]


def test_a_mark_is_found_in_a_text_of_a_thousand_letters() -> None:
    with pytest.raises(UserError) as error:
        ORDERS.filter(" OR ".join(f"amount = {n}" for n in range(200)) + " OR amount ! 3")
    *_, text, mark, _ = str(error.value).splitlines()
    assert text[mark.index("^")] == "!"
    assert len(str(error.value)) < 1000
