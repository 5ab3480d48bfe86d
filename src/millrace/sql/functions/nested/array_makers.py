"""Arrays and maps made from bounds or from text: sequence, split, str_to_map.

Invariant: a pattern of `split` is native only if it means here what it means in Java.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import Typer, function, tree_function
from millrace.sql.functions.nested import nested_sql
from millrace.sql.functions.nested.nested_sql import ARRAYS, MAPS, not_here, null_if_any
from millrace.sql.typed_sql import (
    NotNative,
    TypedSql,
    as_type,
    call_label,
    combined,
    failure,
    text_literal,
)
from millrace.sql.types import DATE, LONG, STRING, VOID, array_of, common, map_of
from millrace.sql.vectorised.java_classes import PatternUnknown
from millrace.sql.vectorised.java_patterns import java_pattern

_EPOCH: Final = "CAST('1970-01-01' AS DATE)"
_DAYS: Final = {"day": 1, "days": 1, "week": 7, "weeks": 7}
_MONTHS: Final = {"month": 1, "months": 1, "year": 12, "years": 12}
_BOUNDS: Final = "sequence: the step does not lead from the start to the stop"
_SPECIAL: Final = set("\\.[]{}()*+?^$|")
_IN_BRACKETS: Final = set("\\^[]&-")
_WITH_LIMIT: Final = 3
_AROUND: Final = re.compile(r"(?<!\[)\^|\$|\\[bBAGzZ]|\(\?")


@tree_function("sequence(start, stop, step)", group=ARRAYS, least=2, most=3)
def _sequence(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    bounds = typer.typed_all(nodes[:2])
    if bounds[0].type == bounds[1].type == DATE:
        return _days(name, bounds, nodes[2] if len(nodes) > len(bounds) else None)
    args = [*bounds, *typer.typed_all(nodes[2:])]
    kind = VOID
    for part in args:
        wider = common(kind, part.type) if part.type.is_integer else None
        if wider is None:
            raise not_here(name, *args)
        kind = wider
    sql = nested_sql.named([cast(part, LONG).sql for part in args], _numbers)
    made = nested_sql.each_of(sql, lambda item: as_type(item, kind))
    certain = all(part.never_null for part in args)
    return combined(
        made,
        array_of(kind, nulls=False),
        args,
        label=call_label(name, args),
        raises=True,
        never_null=certain,
    )


def _numbers(start: str, stop: str, step: str | None = None) -> str:
    """Whole numbers from bound to bound."""
    if step is None:
        way = f"CASE WHEN {start} <= {stop} THEN 1 ELSE -1 END"
        return null_if_any(f"generate_series({start}, {stop}, {way})", start, stop)
    wrong = (
        f"({step} = 0 AND {start} <> {stop}) OR ({step} > 0 AND {start} > {stop}) "
        f"OR ({step} < 0 AND {start} < {stop})"
    )
    sql = (
        f"CASE WHEN {wrong} THEN {failure(_BOUNDS)} WHEN {start} = {stop} THEN [{start}] "
        f"ELSE generate_series({start}, {stop}, {step}) END"
    )
    return null_if_any(sql, start, stop, step)


def _days(name: str, bounds: list[TypedSql], step: exp.Expression | None) -> TypedSql:
    days, months = (None, 0) if step is None else _date_step(step)
    numbers = [f"CAST({part.sql} - {_EPOCH} AS BIGINT)" for part in bounds]
    if months:
        sql = nested_sql.named([part.sql for part in bounds], _month_steps(months))
    else:
        given = numbers if days is None else [*numbers, f"CAST({days} AS BIGINT)"]
        listed = nested_sql.named(given, _numbers)
        sql = nested_sql.each_of(listed, lambda item: f"{_EPOCH} + CAST({item} AS INTEGER)")
    certain = all(part.never_null for part in bounds)
    return combined(
        sql,
        array_of(DATE, nulls=False),
        bounds,
        label=call_label(name, bounds) if step is None else None,
        raises=True,
        never_null=certain,
    )


def _date_step(node: exp.Expression) -> tuple[int | None, int]:
    """Days and months of an interval that is written out."""
    unit = node.args.get("unit") if isinstance(node, exp.Interval) else None
    value = node.this
    written = value.name if isinstance(value, exp.Literal) else ""
    word = unit.name.lower() if isinstance(unit, exp.Var) else ""
    if not written.isdigit() or word not in _DAYS | _MONTHS or int(written) == 0:
        raise NotNative(
            "a sequence of dates by this step is left to Spark",
            found=node.sql(dialect="spark"),
            fix="write, for example, INTERVAL 1 DAY",
        )
    if word in _DAYS:
        return int(written) * _DAYS[word], 0
    return None, int(written) * _MONTHS[word]


def _month_steps(months: int) -> nested_sql.SqlOverNames:
    """Dates whole months after the start; its day of the month is kept where the month has it."""

    def written(start: str, stop: str) -> str:
        item = nested_sql.fresh_name(start, stop)
        count = f"date_diff('month', {start}, {stop}) // {months} + 1"
        dates = (
            f"list_transform(range(0, {count}), "
            f"lambda {item}: CAST({start} + to_months(CAST({item} * {months} AS INTEGER)) AS DATE))"
        )
        kept = f"list_filter({dates}, lambda {item}: {item} <= {stop})"
        sql = f"CASE WHEN {start} > {stop} THEN {failure(_BOUNDS)} ELSE {kept} END"
        return null_if_any(sql, start, stop)

    return written


def plain_pattern(pattern: str) -> str | None:
    """The one text that a regular expression of Java means; None if it means several."""
    out = []
    position = 0
    while position < len(pattern):
        char, after = pattern[position], pattern[position + 1 : position + 2]
        if char == "\\" and after and not after.isalnum() and after.isascii():
            out.append(after)
            position += 2
        elif char == "[" and after and after not in _IN_BRACKETS:
            if pattern[position + 2 : position + 3] != "]":
                return None
            out.append(after)
            position += 3
        elif char in _SPECIAL:
            return None
        else:
            out.append(char)
            position += 1
    return "".join(out)


def _plain(name: str, part: TypedSql) -> str:
    plain = plain_pattern(part.literal) if isinstance(part.literal, str) else None
    if plain is None:
        raise NotNative(
            f"{name} by a pattern is left to Spark",
            found=part.label or "",
            fix="write a plain text, or \\\\ before characters with a meaning",
        )
    return plain


@function("split(s, pattern, limit)", group=ARRAYS, least=2, most=3)
def _split(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    limit = args[2].literal if len(args) == _WITH_LIMIT else -1
    separator = plain_pattern(args[1].literal) if isinstance(args[1].literal, str) else None
    if x.type != STRING or not isinstance(limit, int) or (limit > 0 and separator == ""):
        raise not_here(name, *args)
    sql = (
        _split_by_pattern(x, args[1], limit)
        if separator is None
        else _split_by_text(x, separator, limit)
    )
    extra = () if len(args) == _WITH_LIMIT else ("-1",)
    return combined(
        sql,
        array_of(STRING, nulls=False),
        [x],
        label=call_label(name, args, *extra),
        never_null=x.never_null,
    )


def _split_by_pattern(x: TypedSql, part: TypedSql, limit: int) -> str:
    """By a pattern of Java that matches a character at least."""
    unknown = NotNative(
        "split needs a pattern that is written out, known here, and matches a character",
        found=part.label or "",
        fix="use groups, classes, |, *, +, ? and {n,m}",
    )
    if not isinstance(part.literal, str):
        raise unknown
    try:
        pattern = java_pattern(part.literal)
    except PatternUnknown:
        raise unknown from None
    if pattern.may_be_empty:
        raise unknown
    # DuckDB looks at the text behind a match alone, so what looks around a match is not its own.
    around = _AROUND.search(part.literal) or pattern.has_end or pattern.has_pairs
    if pattern.re2 is not None and not around and limit <= 0:
        return f"string_split_regex({x.sql}, {text_literal(pattern.re2)})"
    return f"spark_split({x.sql}, {text_literal(pattern.python)}, CAST({limit} AS INTEGER))"


def _split_by_text(x: TypedSql, separator: str, limit: int) -> str:
    text = text_literal(separator)

    def written(pieces: str) -> str:
        rest = f"array_to_string(list_slice({pieces}, {limit}, len({pieces})), {text})"
        first = f"list_concat(list_slice({pieces}, 1, {limit} - 1), [{rest}])"
        return f"CASE WHEN len({pieces}) > {limit} THEN {first} ELSE {pieces} END"

    sql = f"string_split({x.sql}, {text})"
    if not separator:
        sql = f"CASE WHEN {x.sql} = '' THEN [''] ELSE {sql} END"
    return nested_sql.named([sql], written) if limit > 0 else sql


@function("str_to_map(s, pair_delimiter, key_delimiter)", group=MAPS, most=3)
def _str_to_map(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0]
    if x.type != STRING:
        raise not_here(name, *args)
    given = [_plain(name, part) for part in args[1:]]
    pairs, colon = [*given, *(",", ":")[len(given) :]]
    if not pairs or not colon:
        raise not_here(name, *args)
    mark = text_literal(colon)

    def written(pieces: str) -> str:
        item = nested_sql.fresh_name(pieces)
        at = f"instr({item}, {mark})"
        key = f"CASE WHEN {at} = 0 THEN {item} ELSE substring({item}, 1, {at} - 1) END"
        value = f"CASE WHEN {at} > 0 THEN substring({item}, {at} + {len(colon)}) END"
        keys = f"list_transform({pieces}, lambda {item}: {key})"
        return f"map({keys}, list_transform({pieces}, lambda {item}: {value}))"

    sql = nested_sql.named([f"string_split({x.sql}, {text_literal(pairs)})"], written)
    extra = (",", ":")[len(args) - 1 :]
    label = call_label(name, args, *extra)
    return combined(
        sql, map_of(STRING, STRING), [x], label=label, raises=True, never_null=x.never_null
    )
