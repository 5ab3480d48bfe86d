"""An aggregate call as it is written: its clauses are read, its arguments typed.

Invariant: whatever the engine does not compute with Spark's answer is `NotNative`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.sql.aggregates.aggregate_calls import AggregateCall, CallOptions
from millrace.sql.aggregates.aggregate_sql import typed
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import Expression
from millrace.sql.functions.casts import cast
from millrace.sql.functions.nested.nested_sql import has_floating, is_ordered, order_key
from millrace.sql.parser import LITERAL, canonical
from millrace.sql.typed_sql import NotNative, TypedSql, as_type, read_columns
from millrace.sql.types import BINARY, BOOLEAN, DOUBLE, INT, STRING, VOID, SqlType, to_arrow

_OTHER_NAMES: Final = {
    "mean": "avg",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "variance": "var_samp",
    "every": "bool_and",
    "some": "bool_or",
    "any": "bool_or",
    "first_value": "first",
    "last_value": "last",
    "array_agg": "collect_list",
    "list": "collect_list",
    "approx_percentile": "percentile_approx",
    "percentile_cont": "percentile",
    "any_value": "first",
    "string_agg": "listagg",
    "try_avg": "avg",
}
_TAKE_ORDER_BY: Final = ("first", "last", "collect_list")
_NEED_WITHIN: Final = ("percentile_cont", "percentile_disc")
_TAKE_WITHIN: Final = (*_NEED_WITHIN, "listagg", "string_agg", "mode")
_TAKE_IGNORE_NULLS: Final = ("first", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A call as it is written."""

    name: str
    function: str
    arguments: tuple[exp.Expression, ...]
    distinct: bool
    order: tuple[exp.Expression, ...]
    within: tuple[exp.Expression, ...]
    ignore_nulls: bool
    where: exp.Expression | None
    shown: str

    def refused(self, what: str, fix: str) -> NotNative:
        """The call is left to Spark for this reason."""
        return NotNative(what, found=self.shown, fix=fix)


def _parse_call(name: str, node: exp.Expression) -> ParsedCall:
    where: exp.Expression | None = None
    within: tuple[exp.Expression, ...] = ()
    ignore = False
    shown = canonical(node)
    while not isinstance(node, exp.Anonymous):
        if isinstance(node, exp.Filter):
            where = node.expression.this
        elif isinstance(node, exp.WithinGroup):
            within = tuple(node.expression.expressions)
        ignore = ignore or isinstance(node, exp.IgnoreNulls)
        node = node.this
    arguments = list(node.expressions)
    order: tuple[exp.Expression, ...] = ()
    if arguments and isinstance(arguments[-1], exp.Order):
        order = tuple(arguments[-1].expressions)
        arguments[-1] = arguments[-1].this
    distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
    if distinct:
        arguments = list(arguments[0].expressions)
    if arguments and isinstance(arguments[0], exp.IgnoreNulls | exp.RespectNulls):
        ignore = ignore or isinstance(arguments[0], exp.IgnoreNulls)
        arguments[0] = arguments[0].this
    return ParsedCall(
        name=name,
        function=_OTHER_NAMES.get(name, name),
        arguments=tuple(arguments),
        distinct=distinct,
        order=order,
        within=within,
        ignore_nulls=ignore,
        where=where,
        shown=shown,
    )


def _check_clauses(written: ParsedCall) -> None:
    if written.order and written.function not in _TAKE_ORDER_BY:
        raise written.refused(f"{written.name} takes no ORDER BY", "leave it out")
    if written.order and written.distinct:
        raise written.refused("DISTINCT and ORDER BY do not go together", "leave one out")
    if written.ignore_nulls and written.function not in _TAKE_IGNORE_NULLS:
        raise written.refused(f"{written.name} takes no IGNORE NULLS", "leave it out")
    how = "it is used as in percentile_cont(0.5) WITHIN GROUP (ORDER BY x)"
    if written.name in _NEED_WITHIN and not written.within:
        raise written.refused(f"{written.name} needs WITHIN GROUP", how)
    if written.within and written.name not in _TAKE_WITHIN:
        raise written.refused(f"{written.name} takes no WITHIN GROUP", how)


@dataclass(frozen=True, slots=True)
class AggregateInput:
    """A call as it is written, with what types its arguments and its FILTER."""

    typer: ExpressionTyper
    written: ParsedCall
    where: TypedSql | None

    def arguments(self, least: int, most: int, words: str) -> Sequence[exp.Expression]:
        """The arguments, if there are as many as there should be."""
        nodes = self.written.arguments
        if not least <= len(nodes) <= most:
            raise self.written.refused(
                f"{self.written.name} was called with {len(nodes)} arguments",
                f"{self.written.name} takes {words}; docs/functions.md shows how it is called",
            )
        return nodes

    def term(self, node: exp.Expression) -> TypedSql:
        """An argument."""
        if isinstance(node, exp.Star):
            raise self.written.refused(f"{self.written.name} takes no *", "name a column")
        return self.typer.typed(node)

    def fitting(
        self, node: exp.Expression, fits: Callable[[SqlType], bool], expected: str
    ) -> TypedSql:
        """An argument of a fitting type."""
        term = self.term(node)
        if not fits(term.type):
            raise NotNative(
                f"{self.written.name} needs {expected}",
                found=f"{self.written.shown} over {term.type}",
                fix="cast the argument",
            )
        return term

    def number(self, node: exp.Expression) -> TypedSql:
        """An argument that is a number; as in Spark, text and NULL are read as doubles."""
        term = self.fitting(
            node, lambda kind: kind.is_numeric or kind in (STRING, VOID), "a number"
        )
        return term if term.type.is_numeric else cast(term, DOUBLE)

    def filtered(self, term: TypedSql, node: exp.Expression) -> Expression:
        """The term as an expression, null in rows that FILTER drops."""
        if self.where is not None:
            term = null_unless(self.where, term)
        return Expression(term.sql, term.type, term.columns, canonical(node), term.raises)

    def build(
        self,
        argument: Expression,
        kind: SqlType,
        *,
        function: str | None = None,
        distinct: bool = False,
        by: Expression | None = None,
        options: CallOptions | None = None,
    ) -> AggregateCall:
        """The call; `function` replaces the one that was written."""
        return AggregateCall(
            function or self.written.function,
            argument,
            distinct=distinct,
            type=kind,
            by=by,
            options=options or CallOptions(),
        )

    def order_key(self, order: Sequence[exp.Expression]) -> TypedSql:
        """One key that compares as the whole ORDER BY does."""
        parts, terms = [], []
        for ordered in order:
            term = self.fitting(ordered.this, is_plain, "plain types to order by")
            way = "DESC" if ordered.args.get("desc") else "ASC"
            nulls = "FIRST" if ordered.args.get("nulls_first") else "LAST"
            parts.append(f"{term.sql}, '{way} NULLS {nulls}'")
            terms.append(term)
        return TypedSql(
            sql=f"create_sort_key({', '.join(parts)})",
            type=BINARY,
            columns=read_columns(terms),
            raises=any(term.raises for term in terms),
        )


def input_of(typer: ExpressionTyper, name: str, node: exp.Expression) -> AggregateInput:
    """The call of a node, with its FILTER and other clauses."""
    written = _parse_call(name, node)
    _check_clauses(written)
    if written.where is None:
        return AggregateInput(typer, written, None)
    condition = typer.typed(written.where)
    if condition.type != BOOLEAN:
        raise written.refused("FILTER needs a condition", "compare it with something")
    return AggregateInput(typer, written, condition)


def null_unless(condition: TypedSql, term: TypedSql) -> TypedSql:
    """The term where the condition is true; elsewhere it is null and not evaluated."""
    return TypedSql(
        sql=typed(f"CASE WHEN {condition.sql} THEN {term.sql} END", term.type),
        type=term.type,
        columns=condition.columns | term.columns,
        raises=condition.raises or term.raises,
    )


def is_comparable(kind: SqlType) -> bool:
    """Whether Spark orders its values: plain ones, and arrays and structs of them."""
    return is_ordered(kind) and kind != VOID


def is_kept(kind: SqlType) -> bool:
    """Whether a row's value stays as it is: DuckDB makes -0.0 to 0.0 in a nested one."""
    return is_known(kind) and not (kind.is_nested and has_floating(kind))


def nested_key(term: TypedSql) -> TypedSql:
    """A plain key that orders as Spark orders the arrays or structs; null for null."""
    key = f"create_sort_key({order_key(term.sql, term.type)}, 'ASC NULLS FIRST')"
    sql = f"CASE WHEN {term.sql} IS NULL THEN NULL ELSE {key} END"
    return TypedSql(sql=sql, type=BINARY, columns=term.columns, raises=term.raises)


def is_plain(kind: SqlType) -> bool:
    """Whether its values can be compared."""
    return kind.is_plain and kind != VOID


def is_known(kind: SqlType) -> bool:
    """Whether it has a type other than that of NULL."""
    return kind != VOID


def one_if(condition: TypedSql | None = None) -> TypedSql:
    """1 where the condition is true."""
    number_one = TypedSql(sql=as_type("1", INT), type=INT)
    return number_one if condition is None else null_unless(condition, number_one)


def none_null(terms: Sequence[TypedSql]) -> TypedSql:
    """Whether no term is null."""
    sql = " AND ".join(f"({term.sql} IS NOT NULL)" for term in terms)
    raises = any(term.raises for term in terms)
    return TypedSql(sql=sql, type=BOOLEAN, columns=read_columns(terms), raises=raises)


def row_of(terms: Sequence[TypedSql]) -> TypedSql:
    """A row of the terms, null where one of them is."""
    fields = [pa.field(f"v{n}", to_arrow(term.type)) for n, term in enumerate(terms)]
    listed = ", ".join(term.sql for term in terms)
    kind = SqlType("passed on", arrow=pa.struct(fields))
    return null_unless(
        none_null(terms), TypedSql(sql=f"row({listed})", type=kind, columns=read_columns(terms))
    )


def number_written(node: exp.Expression) -> float | None:
    """A number written in the text, with or without a suffix."""
    if isinstance(node, exp.Anonymous) and node.name.startswith(LITERAL):
        node = node.expressions[0]
    if isinstance(node, exp.Literal) and not node.is_string:
        return float(node.name)
    return None
