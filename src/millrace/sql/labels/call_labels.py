"""The names that Spark gives to calls of aggregates and window functions.

Spark writes out arguments that were left out, and the frame of every window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import exp

Label = Callable[[exp.Expression], str]
UDF: Final = "udf"
"""The key in `meta` of a call of a user's function: its message."""
_WITHOUT_SECOND: Final = frozenset(
    {
        *("first", "first_value", "last", "last_value", "any_value", "mode"),
        *("approx_count_distinct", "from_json", "from_csv", "from_xml"),
    }
)
"""Functions of which only the first argument is in their name."""
_WRITTEN_OUT: Final = {
    "listagg": (2, "NULL"),
    "string_agg": (2, "NULL"),
    "percentile": (3, "1"),
    "percentile_approx": (3, "10000"),
    "approx_percentile": (3, "10000"),
}
"""By function: the number of arguments, and how the last of them is written if it is left out."""
_IN_CAPITALS: Final = frozenset(
    {
        *("rank", "dense_rank", "percent_rank", "spark_partition_id"),
        *("sqrt", "exp", "log10", "log2", "power", "signum"),
    }
)
_BY_NAME: Final = {"window": "window", "session_window": "session_window", "uuid": "uuid()"}
"""Calls whose arguments are not in their name."""
_OTHER_NAMES: Final = {
    "array_agg": "collect_list",
    "withfield": "WithField",
    "lateralaliasreference": "lateralAliasReference",
}
_WITH_NULLS_CLAUSE: Final = {"first_value": "first", "last_value": "last"}
_VARIABLE: Final = "namedlambdavariable()"
_NATURAL_ORDER: Final = (
    f"lambdafunction((IF((({_VARIABLE} IS NULL) AND ({_VARIABLE} IS NULL)), 0, "
    f"(IF(({_VARIABLE} IS NULL), 1, (IF(({_VARIABLE} IS NULL), -1, "
    f"(IF(({_VARIABLE} < {_VARIABLE}), -1, (IF(({_VARIABLE} > {_VARIABLE}), 1, 0)))))))))), "
    f"{_VARIABLE}, {_VARIABLE})"
)
"""How Spark writes the order of `array_sort` that is not given."""
_UP_TO_ROW: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_RANKS: Final = frozenset({"rank", "dense_rank", "percent_rank", "row_number", "ntile"})


def call_label(tree: exp.Anonymous, label: Label) -> str:
    """The name of a call."""
    if UDF in tree.meta:
        return f"{tree.name}({', '.join(map(label, tree.expressions))})"
    name = tree.name.lower()
    return _BY_NAME[name] if name in _BY_NAME else _label_with_arguments(tree, name, label)


def _label_with_arguments(tree: exp.Anonymous, name: str, label: Label) -> str:
    arguments = list(tree.expressions)
    if arguments and isinstance(arguments[0], exp.IgnoreNulls | exp.RespectNulls):
        name = _WITH_NULLS_CLAUSE.get(name, name)
        arguments[0] = arguments[0].this
    if name == "mode" and arguments[1:] == [exp.true()]:
        return f"mode() WITHIN GROUP (ORDER BY {label(arguments[0])} DESC)"
    if name == "datepart" and len(arguments) == 2:  # noqa: PLR2004 - the field and the time
        return f"datepart({' FROM '.join(map(label, arguments))})"
    if arguments and isinstance(arguments[0], exp.Var):  # datediff(MONTH, start, end)
        name = "timestampadd" if name.endswith("add") else "timestampdiff"
    if name in _WITHOUT_SECOND:
        arguments = arguments[:1]
    ending = ""
    if name == "nth_value" and len(arguments) == 3:  # noqa: PLR2004 - in Python, with nulls or not
        ending = " ignore nulls" if arguments[2] == exp.true() else ""
        arguments = arguments[:2]
    if name == "array_sort" and len(arguments) == 1:
        return f"array_sort({label(arguments[0])}, {_NATURAL_ORDER})"
    listed = [label(argument) for argument in arguments]
    if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
        listed = [label(part) for part in arguments[0].expressions]
        listed[0] = f"DISTINCT {listed[0]}"
    count, default = _WRITTEN_OUT.get(name, (0, ""))
    if len(listed) == count - 1:
        listed.append(default)
    if name == "assert_true" and len(listed) == 1:
        listed.append(f"'{listed[0]}' is not true!")
    if name in ("lag", "lead"):
        listed += ["1", "NULL"][len(listed) - 1 :]
    shown = name.upper() if name in _IN_CAPITALS else _OTHER_NAMES.get(name, name)
    return f"{shown}({', '.join(listed)}){ending}"


def with_nulls_label(tree: exp.Expression, label: Label) -> str:
    """The name of a call with IGNORE NULLS or RESPECT NULLS."""
    call = tree.this
    if not isinstance(call, exp.Anonymous):
        return label(call)
    name = call.name.lower()
    if name == "nth_value" and isinstance(tree, exp.IgnoreNulls):
        return f"{label(call)} ignore nulls"
    renamed = call.copy()
    renamed.set("this", _WITH_NULLS_CLAUSE.get(name, name))
    return label(renamed)


def within_group_label(tree: exp.Expression, label: Label) -> str:
    """The name of a call with WITHIN GROUP."""
    terms = tree.expression.expressions
    name = tree.this.name.lower() if isinstance(tree.this, exp.Anonymous) else ""
    if name in ("listagg", "string_agg"):
        call = tree.this.copy()
        call.set("this", "listagg")
        return f"{label(call)} WITHIN GROUP (ORDER BY {_order(terms, label)})"
    # Spark names mode by the order in which it looks for the value, which is the other one.
    falling = [bool(term.args.get("desc")) != (name == "mode") for term in terms]
    order = ", ".join(
        label(term.this) + (" DESC" if desc else "")
        for term, desc in zip(terms, falling, strict=True)
    )
    return f"{label(tree.this)} WITHIN GROUP (ORDER BY {order})"


def window_label(tree: exp.Expression, label: Label) -> str:
    """The name of a call over a window: its partitions, its order and its frame."""
    keys = tree.args.get("partition_by") or ()
    order = tree.args.get("order")
    parts = [f"PARTITION BY {', '.join(map(label, keys))}"] if keys else []
    parts += [f"ORDER BY {_order(order.expressions, label)}"] if order else []
    parts.append(_frame(tree, label, ordered=order is not None))
    return f"{label(tree.this)} OVER ({' '.join(parts)})"


def _order(terms: list[exp.Expression], label: Label) -> str:
    return ", ".join(
        f"{label(term.this)} {'DESC' if term.args.get('desc') else 'ASC'} "
        f"NULLS {'FIRST' if term.args.get('nulls_first') else 'LAST'}"
        for term in terms
    )


def _frame(tree: exp.Expression, label: Label, *, ordered: bool) -> str:
    spec = tree.args.get("spec")
    if spec is not None:
        start = _bound(spec.args["start"], spec.args.get("start_side"), label)
        end = spec.args.get("end")
        last = "CURRENT ROW" if end is None else _bound(end, spec.args.get("end_side"), label)
        return f"{spec.args['kind'].upper()} BETWEEN {start} AND {last}"
    call = tree.this
    while isinstance(call, exp.IgnoreNulls | exp.RespectNulls | exp.Filter | exp.WithinGroup):
        call = call.this
    name = call.name.lower() if isinstance(call, exp.Anonymous) else ""
    if name in ("lag", "lead"):
        return _offset_frame(name, call, label)
    if name in _RANKS:
        return _UP_TO_ROW
    if ordered:
        return "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    return "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


def _offset_frame(name: str, call: exp.Expression, label: Label) -> str:
    by = label(call.expressions[1]) if len(call.expressions) > 1 else "1"
    if name == "lag":
        by = by.removeprefix("-") if by.startswith("-") else f"-{by}"
    return f"ROWS BETWEEN {by} FOLLOWING AND {by} FOLLOWING"


def _bound(bound: str | exp.Expression, side: str | None, label: Label) -> str:
    text = bound.upper() if isinstance(bound, str) else label(bound)
    return f"{text} {side.upper()}" if side else text
