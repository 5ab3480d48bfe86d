"""One aggregate call: as the user wrote it, with its clauses, and as a value with its SQL.

Invariant: an `AggregateCall` has no clauses any more. In rows that FILTER drops its values are
null, an ORDER BY is one key to compare, and its value and type are Spark's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from millrace.sql.aggregates import aggregate_sql
from millrace.sql.aggregates.aggregate_sql import AggregateSql, typed
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import Expression
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import ExpressionRefused, TypedSql, quoted, read_columns
from millrace.sql.types import (
    BINARY,
    BOOLEAN,
    DOUBLE,
    LONG,
    PRECISION_MAX,
    VOID,
    SqlType,
    decimal,
)

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
}
_TAKE_ORDER_BY: Final = ("first", "last", "collect_list")
_TAKE_IGNORE_NULLS: Final = ("first", "last", "any_value")


@dataclass(frozen=True, slots=True)
class PartialColumn:
    """An aggregate over raw rows, before the exchange."""

    name: str
    sql: str
    type: SqlType


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The constants of a call: fractions of percentiles, their order, the accuracy."""

    fractions: tuple[float, ...] = ()
    is_list: bool = False
    descending: bool = False
    hashes_kept: int = 0


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One call: its function, its argument (None for all rows), and the type of its value.

    `by` orders the rows, where the function asks for an order. Rows that FILTER drops have null
    there and in the argument.
    """

    function: str
    argument: Expression | None
    distinct: bool
    type: SqlType
    by: Expression | None = None
    options: CallOptions = CallOptions()

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it reads."""
        return frozenset().union(
            *(part.columns for part in (self.argument, self.by) if part is not None)
        )

    @property
    def mergeable(self) -> bool:
        """Whether it can be calculated in parts before the exchange."""
        return not self.distinct and len(self._sql().parts) > 0

    def whole(self) -> str:
        """The DuckDB aggregate over raw rows."""
        return self._sql().whole

    def mean(self, summed: str, counted: str) -> str:
        """The average, from the SQL of the sum and of the count."""
        assert self.function == "avg"
        return aggregate_sql.divided(summed, counted, self._summed_type(), self.type)

    def partials(self, prefix: str) -> list[PartialColumn]:
        """The columns that are calculated before the exchange."""
        assert self.mergeable
        parts = self._sql().parts
        return [PartialColumn(f"{prefix}_{n}", sql, kind) for n, (sql, kind) in enumerate(parts)]

    def merge(self, prefix: str) -> str:
        """The DuckDB aggregate over the partial columns."""
        written = self._sql()
        assert self.mergeable
        assert written.merge is not None
        return written.merge([quoted(f"{prefix}_{n}") for n in range(len(written.parts))])

    def _summed_type(self) -> SqlType:
        assert self.argument is not None
        kind = self.argument.type
        return sum_type(kind) if kind.is_decimal else DOUBLE

    def _sql(self) -> AggregateSql:
        distinct = "DISTINCT " if self.distinct else ""
        if self.argument is None:
            return aggregate_sql.count("*")
        over = self.argument.sql
        match self.function:
            case "count":
                return aggregate_sql.count(distinct + over)
            case "sum":
                return aggregate_sql.total(over, self.type, distinct)
            case "avg":
                return aggregate_sql.mean(over, self._summed_type(), self.type, distinct)
            case "stddev_samp" | "stddev_pop" | "var_samp" | "var_pop":
                return aggregate_sql.spread(self.function, over, distinct)
            case "min_by" | "max_by":
                assert self.by is not None
                return aggregate_sql.value_by(
                    self.function, over, self.type, self.by.sql, self.by.type
                )
            case "min" | "max" | "bool_and" | "bool_or" | "any_value":
                return aggregate_sql.same_again(self.function, over, self.type)
            case "collect_list":
                return aggregate_sql.collected(
                    over, self.type, None if self.by is None else self.by.sql
                )
            case "collect_set":
                return aggregate_sql.collected_set(over, self.argument.type)
            case "approx_count_distinct":
                return aggregate_sql.estimated_count(over, self.options.hashes_kept)
            case _:
                return self._percentile_sql(over, distinct)

    def _percentile_sql(self, over: str, distinct: str) -> AggregateSql:
        fractions, is_list = self.options.fractions, self.options.is_list
        match self.function:
            case "median":
                return aggregate_sql.median(over, distinct)
            case "percentile" | "percentile_disc":
                return aggregate_sql.percentile(
                    over,
                    distinct,
                    fractions,
                    is_list=is_list,
                    discrete=self.function == "percentile_disc",
                    descending=self.options.descending,
                )
            case "percentile_approx":
                return aggregate_sql.approximate_percentile(
                    over, distinct, self.type, fractions, is_list=is_list
                )
            case _:
                raise AssertionError(f"no aggregate {self.function}")


def sum_type(kind: SqlType) -> SqlType:
    """The type of a sum."""
    if kind.is_decimal:
        return decimal(min(PRECISION_MAX, kind.precision + 10), kind.scale)
    return LONG if kind.is_integer else DOUBLE


def mean_type(kind: SqlType) -> SqlType:
    """The type of a mean."""
    if kind.is_decimal:
        return decimal(min(PRECISION_MAX, kind.precision + 4), min(PRECISION_MAX, kind.scale + 4))
    return DOUBLE


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
    grouped = written.name in ("percentile_cont", "percentile_disc")
    if grouped != bool(written.within):
        how = "percentile_cont(0.5) WITHIN GROUP (ORDER BY x)"
        word = "needs" if grouped else "takes no"
        raise written.refused(f"{written.name} {word} WITHIN GROUP", f"it is used as in {how}")


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
            raise ExpressionRefused(
                f"{self.written.name} needs {expected}",
                found=f"{self.written.shown} over {term.type}",
                fix="cast the argument",
            )
        return term

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

    def order_key(self) -> TypedSql:
        """One key that compares as the whole ORDER BY does."""
        parts, terms = [], []
        for ordered in self.written.order:
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


def is_plain(kind: SqlType) -> bool:
    """Whether its values can be compared."""
    return kind.is_plain and kind != VOID
