"""Finds the engine's aggregate calls inside the SQL of an aggregate, so that each gets a window.

`CAST(sum("x") AS DOUBLE) / count("x")` becomes the calls `sum("x")` and `count("x")`, and the SQL
around them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAMES: Final = (
    *("count", "sum", "min", "max", "favg", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"),
    *("var_pop", "var_samp", "stddev_pop", "stddev_samp", "covar_pop", "list", "string_agg"),
    *("mode", "arg_min_null", "arg_max_null", "quantile_disc"),
)
_TOKEN: Final = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|(?P<call>\b(?:" + "|".join(_NAMES) + r")\()|[()]"
)
_FILTER: Final = " FILTER (WHERE "


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call of an aggregate function of the engine."""

    function: str
    arguments: str
    condition: str = ""


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """Calls, and the SQL around them: `between` has the numbers of the calls between two texts."""

    calls: tuple[EngineCall, ...]
    around: tuple[str, ...]
    between: tuple[int, ...]


def engine_calls(sql: str) -> EngineCalls:
    """The aggregate calls in some SQL; equal ones are kept once."""
    calls: list[EngineCall] = []
    around: list[str] = []
    between: list[int] = []
    done = position = 0
    while (token := _TOKEN.search(sql, position)) is not None:
        position = token.end()
        if not token["call"]:
            continue
        end = _closing(sql, position)
        arguments, condition = sql[position : end - 1], ""
        if sql.startswith(_FILTER, end):
            start = end + len(_FILTER)
            end = _closing(sql, start)
            condition = sql[start : end - 1]
        call = EngineCall(token["call"][:-1], arguments, condition)
        if call not in calls:
            calls.append(call)
        around.append(sql[done : token.start()])
        between.append(calls.index(call))
        done = position = end
    return EngineCalls(tuple(calls), (*around, sql[done:]), tuple(between))


def _closing(sql: str, position: int) -> int:
    """Where the bracket ends that is open at a position."""
    depth = 1
    while depth:
        token = _TOKEN.search(sql, position)
        assert token is not None, f"a bracket is not closed in {sql}"
        depth += {"(": 1, ")": -1}.get(token[0], 1 if token["call"] else 0)
        position = token.end()
    return position
