"""Explains that a function does not exist, and what to use instead."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.function_registry import AGGREGATES, FUNCTIONS
from millrace.sql.functions.spark_functions import SPARK_FUNCTIONS
from millrace.sql.typed_sql import ExpressionRefused, NotNative
from millrace.text import did_you_mean

_OTHER_NAMES: Final = {"average": "avg", "strlen": "length"}
"""Names of other languages for functions that go by another name in Spark."""
_WORDS_OF_SPARK: Final = frozenset({"timestampadd", "timestampdiff", "timediff"})
"""Calls that Spark's grammar knows, and that are no functions of it."""
_WINDOW: Final = frozenset(
    {
        *("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"),
        *("lag", "lead", "nth_value"),
    }
)


def unknown_function(name: str) -> ExpressionRefused:
    """The refusal of a name: misspelled, a function that only Spark has, or unknown."""
    known = sorted({*FUNCTIONS, *AGGREGATES, *SPARK_FUNCTIONS})
    if name in _WINDOW:
        return ExpressionRefused(
            f"{name} is a window function and has no place here",
            fix=f"use window(partition_by=..., order_by=..., column='{name}(...)')",
        )
    if name in SPARK_FUNCTIONS or name in _WORDS_OF_SPARK:
        return NotNative(
            f"Spark has the function {name}, Millrace does not have it yet",
            fix="calculate it in a function with map_batches, or in Spark and take the DataFrame "
            "with from_spark; docs/functions.md lists what there is",
        )
    if _OTHER_NAMES.get(name) in known:
        return ExpressionRefused(
            f"the function {name} is not known", fix=f"use {_OTHER_NAMES[name]}"
        )
    return ExpressionRefused(
        f"the function {name} is not known",
        fix=did_you_mean(name, known, "use one of those that docs/functions.md lists"),
    )
