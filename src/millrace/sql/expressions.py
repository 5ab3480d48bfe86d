"""Spark SQL expressions, typed and written out for DuckDB.

Invariant: an expression has Spark's value and Spark's type on every row, or fails as Spark in ANSI
mode does. Every other expression is refused when it is parsed.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int32()})
    >>> parse("a / 2", schema, call="select('a / 2')").type.name
    'double'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.errors import UserError
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import canonical, operands, read, with_names
from millrace.sql.sql_mode import SqlMode, current_mode
from millrace.sql.syntax_errors import clipped, refuse_name
from millrace.sql.type_names import CAST_NAMES
from millrace.sql.typed_sql import ExpressionRefused, TypedSql, as_type, quoted
from millrace.sql.types import BOOLEAN, FIELD_MARK, SqlType, from_arrow, in_other_form

__all__ = ["Expression", "parse", "parse_named", "quoted"]

_QUOTED: Final = re.compile(rf"'(?:[^']|'')*'|(?:{re.escape(FIELD_MARK)})?\"(?:[^\"]|\"\")*\"")
"""Texts and names in DuckDB's SQL; the name of a field has a mark before it."""
_PARTS_MAX: Final = 32
"""Of more conditions, moving each of them by itself is not worth a step of the plan for each."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A typed expression over the columns of one schema.

    `sql` gives the DuckDB form of `type`. `raises` says that it can fail for some row, so it must
    not be evaluated for rows that an earlier condition drops. `mode` is the one it was typed in.
    """

    sql: str
    type: SqlType
    columns: frozenset[str]
    text: str
    raises: bool = False
    mode: SqlMode = field(default_factory=current_mode)

    @property
    def is_column(self) -> bool:
        """Whether it is a column as it is."""
        return len(self.columns) == 1 and self.sql == quoted(next(iter(self.columns)))

    def renamed(self, names: Mapping[str, str]) -> Expression:
        """The same over columns of other names."""
        quotes = {quoted(old): quoted(new) for old, new in names.items()}
        return replace(
            self,
            sql=_QUOTED.sub(lambda match: quotes.get(match[0], match[0]), self.sql),
            columns=frozenset(names.get(name, name) for name in self.columns),
            text=with_names(self.text, names),
        )


@contextmanager
def as_user_error(call: str) -> Iterator[None]:
    """Raise what is refused as a `UserError` that names the user's call."""
    try:
        yield
    except ExpressionRefused as refused:
        shown = f"  found: {clipped(refused.found)}\n" if refused.found else ""
        what = f"{refused.what}, in {clipped(call)}"
        raise UserError(f"{what}\n{shown}  to fix: {refused.fix}") from None


def parse(text: str, schema: pa.Schema, *, call: str) -> Expression:
    """One expression without a name, such as a condition."""
    with as_user_error(call):
        tree = read(text)
        refuse_name(tree, text)
        return expression_of(tree, ExpressionTyper(NameScope(schema)).typed(tree))


def parse_conditions(text: str, schema: pa.Schema, *, call: str) -> list[Expression]:
    """The parts of a condition that are joined by AND; one part if one of them can fail."""
    whole = parse(text, schema, call=call)
    if whole.type != BOOLEAN:
        raise UserError(
            f"{clipped(call)} is not a condition\n  found: a value of type {whole.type}\n"
            "  to fix: compare it with something, as in a > 0"
        )
    with as_user_error(call):
        trees = operands(read(text), exp.And, through_brackets=True)
        if whole.raises or not 1 < len(trees) <= _PARTS_MAX:
            return [whole]
        return [
            expression_of(tree, ExpressionTyper(NameScope(schema)).typed(tree)) for tree in trees
        ]


def parse_named(text: str, schema: pa.Schema, *, call: str) -> list[tuple[str, Expression]]:
    """An expression with its name; `*` is every column. Without AS it has Spark's own name."""
    with as_user_error(call):
        tree = read(text)
        if isinstance(tree, exp.Star):
            if tree.args.get("except_") or tree.args.get("replace") or tree.args.get("rename"):
                raise ExpressionRefused("* stands alone here", found=text, fix="use drop or rename")
            return [as_is(column) for column in schema]
        name = tree.alias if isinstance(tree, exp.Alias) else None
        body = tree.this if isinstance(tree, exp.Alias) else tree
        term = ExpressionTyper(NameScope(schema)).typed(body)
        name = name or own_name(body, term)
        if name is None:
            raise ExpressionRefused(
                "the expression has no certain name", found=text, fix="add AS name"
            )
        return [(name, expression_of(body, term))]


def expression_of(tree: exp.Expression, term: TypedSql) -> Expression:
    """A typed tree as an expression."""
    return Expression(term.sql, term.type, term.columns, canonical(tree), term.raises)


def as_is(column: pa.Field) -> tuple[str, Expression]:
    """A column as it is, under its name."""
    name, kind = column.name, from_arrow(column.type)
    sql = as_type(quoted(name), kind) if in_other_form(column.type) else quoted(name)
    text = "`" + name.replace("`", "``") + "`"
    return name, Expression(sql, kind, frozenset([name]), text)


def own_name(tree: exp.Expression, term: TypedSql) -> str | None:
    """Spark's name of an expression: a cast of a column is named after the column."""
    while isinstance(tree, exp.Paren | exp.Cast | exp.TryCast) or (
        isinstance(tree, exp.Anonymous) and tree.name.lower() in CAST_NAMES
    ):
        tree = tree.expressions[0] if isinstance(tree, exp.Anonymous) else tree.this
    owner = tree
    while isinstance(owner, exp.Dot | exp.Paren):
        owner = owner.this
    if isinstance(tree, exp.Dot) and isinstance(owner, exp.Column):
        return str(tree.expression.name)
    # A name that is no column is a call without brackets, such as current_date.
    return tree.name if isinstance(tree, exp.Column) and term.columns else term.label
