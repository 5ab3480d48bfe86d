"""Every example of Spark's function documentation: Spark's answer here too, or left to Spark.

`tests/spark/spark_examples.jsonl` has the examples with Spark's answers. `docs/spark-functions.md`
lists the outcome for each function; `make spark-functions` writes it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from tests.spark.spark_examples import (
    NO_PYTHON_TYPE,
    SparkExample,
    alike,
    plain_rows,
    stored_examples,
    type_text,
)
from tests.unit.sql.example_kit import CONTEXT, native_answer

from millrace.errors import MillraceError, UserError
from millrace.plan.statements.statement import statement_relation
from millrace.sql.functions.spark_functions import SPARK_FUNCTIONS
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused, NotNative

PAGE = Path(__file__).parents[3] / "docs" / "spark-functions.md"
NATIVE, ON_SPARK, REFUSED, WRONG = "native", "Spark", "refused", "wrong"
ANY_ORDER = re.compile(r"\bcollect_set\b| OVER |\bGROUP BY\b")
"""Lists and rows whose order Spark does not promise."""
FREE_CHOICE = {"SELECT mode(col, false) FROM VALUES (-10), (0), (10) AS tab(col)"}
"""Spark promises one of several values, and the one here may be another."""
OTHER_NAMES = re.compile(
    r"SELECT 2 > 1\.1|array_sort\(array\('b'|AS S, S i?like|ilike|extract\((week|doy)|"
    r"datepart\('doy"
)
"""Names in which Spark shows its own rewriting of the expression, or small letters."""
TITLE = "# Spark's functions: native, or on Spark"
INTRO = """\
What happens to each function of Spark 4.3. A test runs all examples of Spark's own documentation
(`DESCRIBE FUNCTION EXTENDED`) and compares values and types with Spark's. `native`: the engine here
gives Spark's answer. `Spark`: the operator that holds the call runs on Spark, with the reason.
`native, or Spark`: some forms of the call are native. None is refused. `make
spark-functions` writes this page."""


@cache
def outcomes() -> list[tuple[SparkExample, str, str]]:
    """Each example with its outcome and the reason."""
    with TemporaryDirectory() as folder:
        return [(example, *outcome(example, Path(folder))) for example in stored_examples()]


def outcome(example: SparkExample, folder: Path) -> tuple[str, str]:
    try:
        mine = native_answer(example.sql, folder)
    except NotNative as refused:
        return ON_SPARK, refused.what
    except (ExpressionRefused, UserError) as refused:
        if example.error:
            return NATIVE, ""
        return REFUSED, str(refused).splitlines()[0]
    except (MillraceError, pa.ArrowException) as failure:
        return (NATIVE, "") if example.error else (REFUSED, f"fails: {failure}")
    if example.error:
        return WRONG, f"{mine.to_pylist()}, and Spark fails: {example.error}"
    return compared(example, mine)


def compared(example: SparkExample, mine: pa.Table) -> tuple[str, str]:
    kinds = tuple(type_text(kind) for kind in mine.schema.types)
    if example.types == (NO_PYTHON_TYPE,):
        return WRONG, f"types {kinds}, and Spark's is {NO_PYTHON_TYPE}"
    if example.rows is None or example.sql in FREE_CHOICE:
        return NATIVE, ""
    if kinds != example.types:
        return WRONG, f"types {kinds}, and Spark's are {example.types}"
    rows = plain_rows(mine)
    if ANY_ORDER.search(example.sql):
        same = sorted(map(repr, in_any_order(rows))) == sorted(
            map(repr, in_any_order(example.rows))
        )
    else:
        same = alike(rows, example.rows)
    return (NATIVE, "") if same else (WRONG, f"{rows}, and Spark has {example.rows}")


def in_any_order(rows: Any) -> Any:  # noqa: ANN401 - lists of anything
    if isinstance(rows, list | tuple):
        return sorted(map(in_any_order, rows), key=repr)
    return rows


def page() -> str:
    """The page of all functions."""
    by_function: dict[str, list[tuple[str, str]]] = {}
    for example, result, why in outcomes():
        by_function.setdefault(example.function, []).append((result, why))
    names = sorted({*by_function, *SPARK_FUNCTIONS})
    lines = [line_of(name, by_function.get(name, [])) for name in names]
    return "\n".join(
        [TITLE, "", INTRO, "", "| function | runs | why |", "|---|---|---|", *lines, ""]
    )


def line_of(name: str, results: list[tuple[str, str]]) -> str:
    kinds = {result for result, _ in results}
    reasons = dict.fromkeys(why for result, why in results if result != NATIVE)
    shown = ", or ".join(kind for kind in (NATIVE, ON_SPARK, REFUSED, WRONG) if kind in kinds)
    why = "; ".join(reasons) if results else "Spark has no example"
    name, why = (" ".join(text.split()).replace("|", "\\|") for text in (name, why))
    return f"| `{name}` | {shown or ON_SPARK} | {why} |"


def test_no_example_has_another_answer_than_spark() -> None:
    wrong = [f"{e.function}: {e.sql}\n  {why}" for e, result, why in outcomes() if result == WRONG]
    assert wrong == []


def test_no_example_that_spark_answers_is_refused() -> None:
    refused = [f"{e.function}: {e.sql}: {why}" for e, kind, why in outcomes() if kind == REFUSED]
    assert refused == []


def test_columns_of_examples_have_sparks_names() -> None:
    unlike = []
    for example in stored_examples():
        if not example.names or OTHER_NAMES.search(example.sql):
            continue
        try:
            labels = tuple(statement_relation(CONTEXT, read(example.sql)).labels)
        except ExpressionRefused:
            continue
        if labels != example.names:
            unlike.append((example.sql, labels, example.names))
    assert unlike == []


def test_the_page_says_what_is_native() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "to fix: make spark-functions"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for line in page().splitlines():
        print(line)  # noqa: T201 - a command
