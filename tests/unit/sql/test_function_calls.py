"""Every function of `pyspark.sql.functions`, called in Python: Spark's name, type and value.

`tests/spark/function_calls.jsonl` has the calls with Spark's answers. What the engine does not know
is left to Spark: `tests/spark/test_function_calls.py` shows that it comes back as Spark gives it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from pyspark.sql import functions
from tests.spark.function_calls import FunctionCall, columns_of, stored_calls
from tests.spark.hand_made_calls import NO_COLUMNS
from tests.spark.spark_examples import alike, plain_rows, type_text
from tests.unit.sql.example_kit import CONTEXT, run_plan

import millrace as mr
from millrace import functions as F  # noqa: N812 - as Spark's users write it
from millrace.errors import MillraceError, UserError
from millrace.plan.builders.build_select import select
from millrace.plan.relation import Relation
from millrace.plan.statements.statement import statement_relation
from millrace.sql.connect_expressions import column_tree
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused, NotNative

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:WARN WindowExpression"
    ),  # PySpark's, of windows of all rows.
    pytest.mark.filterwarnings("ignore:Deprecated"),  # PySpark's, of functions with two names.
]
PAGE = Path(__file__).parents[3] / "docs" / "coming-from-pyspark.md"
START, END = "<!-- functions -->", "<!-- end of functions -->"
NATIVE, ON_SPARK, REFUSED, WRONG = "native", "on Spark", "refused", "wrong"
ANY_ORDER = re.compile(r"collect_set|listagg_distinct|string_agg_distinct|\.over\(")
"""Lists and rows whose order Spark does not promise."""
FREE_CHOICE = frozenset({"F.mode(F.expr('col'), False)"})
"""Spark promises one of several values, and the one here may be another."""


@cache
def outcomes() -> list[tuple[FunctionCall, str, str]]:
    """Each call with its outcome and the reason."""
    with TemporaryDirectory() as folder:
        return [(call, *outcome(call, Path(folder))) for call in stored_calls()]


def relation_of_call(call: FunctionCall) -> Relation:
    """The rows of a call, as the builders make them."""
    rows = statement_relation(CONTEXT, read(call.rows))
    return select(CONTEXT, rows, [column_tree(columns_of(call, F, mr.Window))])


def outcome(call: FunctionCall, folder: Path) -> tuple[str, str]:
    try:
        relation = relation_of_call(call)
        mine = run_plan(relation.output(), folder)
    except NotNative as refused:
        return ON_SPARK, refused.what
    except (ExpressionRefused, UserError) as refused:
        return (NATIVE, "") if call.error else (REFUSED, str(refused).splitlines()[0])
    except (MillraceError, pa.ArrowException) as failure:
        return (NATIVE, "") if call.error else (REFUSED, f"fails: {failure}")
    if call.error:
        return WRONG, f"{mine.to_pylist()}, and Spark fails: {call.error}"
    if tuple(relation.labels) != call.names:
        return WRONG, f"names {relation.labels}, and Spark's are {call.names}"
    if call.answer is None:
        return NATIVE, ""
    kinds = tuple(type_text(kind) for kind in mine.schema.types)
    if kinds != call.types:
        return WRONG, f"types {kinds}, and Spark's are {call.types}"
    rows = plain_rows(mine)
    same = alike(rows, call.answer) or call.call in FREE_CHOICE
    if not same and ANY_ORDER.search(call.call):
        same = sorted(map(sorted_text, rows)) == sorted(map(sorted_text, call.answer))
    return (NATIVE, "") if same else (WRONG, f"{rows}, and Spark has {call.answer}")


def sorted_text(row: object) -> str:
    return "".join(sorted(repr(row)))


def test_every_function_of_spark_is_called_or_makes_no_column() -> None:
    called = {call.function for call in stored_calls()}
    assert set(functions.__all__) == called | set(NO_COLUMNS), "run make function-calls"
    assert [name for name in functions.__all__ if not hasattr(F, name)] == []


def test_no_call_has_another_answer_than_spark() -> None:
    wrong = [f"{c.call}\n  {why}" for c, result, why in outcomes() if result == WRONG]
    assert wrong == [], "\n".join(wrong)


def test_no_call_is_refused() -> None:
    refused = [f"{c.call}: {why}" for c, kind, why in outcomes() if kind == REFUSED]
    assert refused == [], "\n".join(refused)


def listing() -> str:
    """The functions by where they run, for the page."""
    kinds: dict[str, set[str]] = {}
    for call, kind, _ in outcomes():
        kinds.setdefault(call.function, set()).add(kind)
    here = [name for name, found in kinds.items() if found == {NATIVE}]
    both = [name for name, found in kinds.items() if found == {NATIVE, ON_SPARK}]
    spark = [name for name, found in kinds.items() if found == {ON_SPARK}]
    parts = {
        "Here": here,
        "Here or on Spark, by their arguments": both,
        "On Spark": spark,
        "Names that make no column": NO_COLUMNS,
    }
    return "\n\n".join(
        f"**{title}** ({len(names)}): {', '.join(f'`{name}`' for name in sorted(names))}"
        for title, names in parts.items()
    )


def written(page: str) -> str:
    """The page with a listing that is true."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n\n{listing()}\n\n{END}{rest.partition(END)[2]}"


def test_the_page_lists_every_function_and_where_it_runs() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert START in page
    assert written(page) == page, "to fix: make pyspark-methods"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
