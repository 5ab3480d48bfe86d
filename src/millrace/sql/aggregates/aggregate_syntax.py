"""An aggregate call as it is written: arguments, DISTINCT, ORDER BY, FILTER, and nulls passed over.

Invariant: an `AggregateInput` needs no clauses any more: in rows that FILTER takes out values
are null, and an ORDER BY is one key to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.sql.aggregates.aggregate_calls import AggregateCall, CallOptions
from millrace.sql.aggregates.aggregate_forms import typed
from millrace.sql.expressions import Expression
from millrace.sql.parser import LITERAL, canonical
from millrace.sql.terms import ExpressionRefused, Term, as_type, union
from millrace.sql.types import BINARY, BOOLEAN, INT, VOID, SqlType, to_arrow
from millrace.sql.typing_walk import Walker

_SAME: Final = {
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
}
_ORDERED: Final = ("first", "last", "collect_list")
_NULLS_CHOSEN: Final = ("first", "last", "any_value")


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

    def refused(self, what: str, fix: str) -> ExpressionRefused:
        """The call is refused for this reason."""
        return ExpressionRefused(what, found=self.shown, fix=fix)


def _written(name: str, node: exp.Expression) -> ParsedCall:
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
        function=_SAME.get(name, name),
        arguments=tuple(arguments),
        distinct=distinct,
        order=order,
        within=within,
        ignore_nulls=ignore,
        where=where,
        shown=shown,
    )


def _check_clauses(written: ParsedCall) -> None:
    if written.order and written.function not in _ORDERED:
        raise written.refused(f"{written.name} takes no ORDER BY", "leave it out")
    if written.order and written.distinct:
        raise written.refused("DISTINCT and ORDER BY do not go together", "leave one out")
    if written.ignore_nulls and written.function not in _NULLS_CHOSEN:
        raise written.refused(f"{written.name} takes no IGNORE NULLS", "leave it out")
    grouped = written.name in ("percentile_cont", "percentile_disc")
    if grouped != bool(written.within):
        how = "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)"
        word = "needs" if grouped else "takes no"
        raise written.refused(f"{written.name} {word} WITHIN GROUP", f"it is used as in {how}")


@dataclass(frozen=True, slots=True)
class AggregateInput:
    """A written call and the columns it is over."""

    walker: Walker
    written: ParsedCall
    where: Term | None

    def takes(self, least: int, most: int, words: str) -> Sequence[exp.Expression]:
        """The arguments, if there are as many as there should be."""
        found = self.written.arguments
        if not least <= len(found) <= most:
            raise self.written.refused(
                f"{self.written.name} was called with {len(found)} arguments",
                f"{self.written.name} takes {words}; docs/functions.md shows how it is called",
            )
        return found

    def term(self, node: exp.Expression) -> Term:
        """An argument."""
        if isinstance(node, exp.Star):
            raise self.written.refused(f"{self.written.name} takes no *", "name a column")
        return self.walker.walk(node)

    def fitting(self, node: exp.Expression, fits: Callable[[SqlType], bool], wanted: str) -> Term:
        """An argument of a fitting type."""
        term = self.term(node)
        if not fits(term.type):
            raise ExpressionRefused(
                f"{self.written.name} needs {wanted}",
                found=f"{self.written.shown} over {term.type}",
                fix="cast the argument",
            )
        return term

    def kept(self, term: Term, node: exp.Expression) -> Expression:
        """The term as an expression, null where FILTER takes a row out."""
        if self.where is not None:
            term = only_if(self.where, term)
        return Expression(term.sql, term.type, term.columns, canonical(node), term.raises)

    def call(
        self,
        argument: Expression,
        kind: SqlType,
        *,
        function: str | None = None,
        distinct: bool = False,
        by: Expression | None = None,
        options: CallOptions | None = None,
    ) -> AggregateCall:
        """A call of a function, the written one if no other is named."""
        return AggregateCall(
            function or self.written.function,
            argument,
            distinct=distinct,
            type=kind,
            by=by,
            options=options or CallOptions(),
        )

    def order_key(self) -> Term:
        """One key that compares as the whole ORDER BY does."""
        parts, terms = [], []
        for ordered in self.written.order:
            term = self.fitting(ordered.this, is_plain, "plain types to order by")
            way = "DESC" if ordered.args.get("desc") else "ASC"
            nulls = "FIRST" if ordered.args.get("nulls_first") else "LAST"
            parts.append(f"{term.sql}, '{way} NULLS {nulls}'")
            terms.append(term)
        return Term(
            sql=f"create_sort_key({', '.join(parts)})",
            type=BINARY,
            columns=union(terms),
            raises=any(term.raises for term in terms),
        )


def reading_of(walker: Walker, name: str, node: exp.Expression) -> AggregateInput:
    """The call that a node is, with FILTER and other clauses around it or not."""
    written = _written(name, node)
    _check_clauses(written)
    if written.where is None:
        return AggregateInput(walker, written, None)
    condition = walker.walk(written.where)
    if condition.type != BOOLEAN:
        raise written.refused("FILTER needs a condition", "compare it with something")
    return AggregateInput(walker, written, condition)


def only_if(condition: Term, term: Term) -> Term:
    """The term where the condition is true; elsewhere it is null and not evaluated."""
    return Term(
        sql=typed(f"CASE WHEN {condition.sql} THEN {term.sql} END", term.type),
        type=term.type,
        columns=condition.columns | term.columns,
        raises=condition.raises or term.raises,
    )


def is_plain(kind: SqlType) -> bool:
    """Whether one can compare values of it."""
    return kind.arrow is None and kind != VOID


def is_known(kind: SqlType) -> bool:
    """Whether it is more than NULL."""
    return kind != VOID


def one_if(condition: Term | None = None) -> Term:
    """1 where the condition is true."""
    one = Term(sql=as_type("1", INT), type=INT)
    return one if condition is None else only_if(condition, one)


def none_null(terms: Sequence[Term]) -> Term:
    """Whether no term is null."""
    sql = " AND ".join(f"({term.sql} IS NOT NULL)" for term in terms)
    raises = any(term.raises for term in terms)
    return Term(sql=sql, type=BOOLEAN, columns=union(terms), raises=raises)


def together(terms: Sequence[Term]) -> Term:
    """A row of the terms, null where one of them is."""
    fields = [pa.field(f"v{n}", to_arrow(term.type)) for n, term in enumerate(terms)]
    listed = ", ".join(term.sql for term in terms)
    kind = SqlType("passed on", arrow=pa.struct(fields))
    return only_if(none_null(terms), Term(sql=f"row({listed})", type=kind, columns=union(terms)))


def number_written(node: exp.Expression) -> float | None:
    """A number that stands in the text, with or without a suffix."""
    if isinstance(node, exp.Anonymous) and node.name.startswith(LITERAL):
        node = node.expressions[0]
    if isinstance(node, exp.Literal) and not node.is_string:
        return float(node.name)
    return None
