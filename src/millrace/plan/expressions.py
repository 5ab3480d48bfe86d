"""Spark SQL expressions, typed and written out for DuckDB.

Invariant: an expression that is taken has Spark's value and Spark's type on every row, or fails as
Spark in ANSI mode does; everything else is refused when it is written down.

    >>> import pyarrow as pa
    >>> schema = pa.schema({"a": pa.int32()})
    >>> parse("a / 2", schema, call="select('a / 2')").type.name
    'double'
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.errors import UserError
from millrace.plan.columns import Columns
from millrace.plan.reader import canonical, read, with_names
from millrace.plan.terms import Refused, Term, as_type, quoted
from millrace.plan.types import BOOLEAN, SqlType, from_arrow
from millrace.plan.walk import CAST_NAMES, Walker

__all__ = ["Expression", "parse", "parse_named", "quoted"]

_QUOTED: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
"""Texts and names in DuckDB's SQL."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A typed expression over the columns of one schema.

    `sql` yields the DuckDB form of `type`. `raises` says that some row could fail it, so that it
    must not be evaluated for rows that an earlier condition takes out.
    """

    sql: str
    type: SqlType
    columns: frozenset[str]
    text: str
    raises: bool = False

    @property
    def is_column(self) -> bool:
        """Whether it is a column as it is."""
        return len(self.columns) == 1 and self.sql == quoted(next(iter(self.columns)))

    def renamed(self, names: Mapping[str, str]) -> Expression:
        """The same over columns of other names."""
        quotes = {quoted(old): quoted(new) for old, new in names.items()}
        return replace(
            self,
            sql=_QUOTED.sub(lambda found: quotes.get(found[0], found[0]), self.sql),
            columns=frozenset(names.get(name, name) for name in self.columns),
            text=with_names(self.text, names),
        )


@contextmanager
def worded(call: str) -> Iterator[None]:
    """Word what was refused for the user who made `call`."""
    try:
        yield
    except Refused as refused:
        lines = [f"{refused.what}, in {call}"]
        lines += [f"  found: {refused.found}"] if refused.found else []
        lines += [f"  to fix: {refused.fix}"] if refused.fix else []
        raise UserError("\n".join(lines)) from None


def parse(text: str, schema: pa.Schema, *, call: str) -> Expression:
    """One expression without a name, such as a condition."""
    with worded(call):
        tree = read(text)
        if isinstance(tree, exp.Alias):
            raise Refused("a name has no place here", found=text, fix="leave out AS")
        return expression(tree, Walker(columns_of(schema)).walk(tree))


def parse_conditions(text: str, schema: pa.Schema, *, call: str) -> list[Expression]:
    """A condition as parts that all have to be true; in one part if one of them could fail."""
    whole = parse(text, schema, call=call)
    if whole.type != BOOLEAN:
        raise UserError(f"{call} is not a condition\n  found: {whole.type}, expected: boolean")
    with worded(call):
        trees = [*_parts(read(text))]
        if whole.raises or len(trees) == 1:
            return [whole]
        return [expression(tree, Walker(columns_of(schema)).walk(tree)) for tree in trees]


def _parts(tree: exp.Expression) -> Iterator[exp.Expression]:
    """What is joined by AND."""
    match tree:
        case exp.And(this=exp.Expression() as left, expression=exp.Expression() as right):
            yield from _parts(left)
            yield from _parts(right)
        case exp.Paren() if isinstance(tree.this, exp.And):
            yield from _parts(tree.this)
        case _:
            yield tree


def parse_named(text: str, schema: pa.Schema, *, call: str) -> list[tuple[str, Expression]]:
    """An expression with its name; `*` is every column. Without AS it has Spark's own name."""
    with worded(call):
        tree = read(text)
        if isinstance(tree, exp.Star):
            if tree.args.get("except_") or tree.args.get("replace") or tree.args.get("rename"):
                raise Refused("* stands alone here", found=text, fix="use drop or rename")
            return [_passed(field) for field in schema]
        name = tree.alias if isinstance(tree, exp.Alias) else None
        body = tree.this if isinstance(tree, exp.Alias) else tree
        term = Walker(columns_of(schema)).walk(body)
        name = name or _own_name(body, term)
        if name is None:
            raise Refused("the expression has no certain name", found=text, fix="add AS name")
        return [(name, expression(body, term))]


def columns_of(schema: pa.Schema) -> Columns:
    """The columns of a schema by name."""
    kinds = {field.name: from_arrow(field.type) for field in schema}
    other = frozenset(field.name for field in schema if _other_form(field.type))
    return Columns(kinds, cast_first=other)


def _other_form(kind: pa.DataType) -> bool:
    """Whether DuckDB reads the column as another type than the one its values are given."""
    return bool(pa.types.is_date64(kind) or (pa.types.is_timestamp(kind) and kind.unit != "us"))


def expression(tree: exp.Expression, term: Term) -> Expression:
    """A walked tree as an expression."""
    return Expression(term.sql, term.type, term.columns, canonical(tree), term.raises)


def _passed(field: pa.Field) -> tuple[str, Expression]:
    tree = exp.column(exp.to_identifier(field.name, quoted=True))
    kind = from_arrow(field.type)
    sql = as_type(quoted(field.name), kind) if _other_form(field.type) else quoted(field.name)
    term = Term(sql=sql, type=kind, columns=frozenset([field.name]))
    return field.name, expression(tree, term)


def _own_name(tree: exp.Expression, term: Term) -> str | None:
    """Spark names a cast of a column after the column."""
    while isinstance(tree, exp.Paren | exp.Cast | exp.TryCast) or (
        isinstance(tree, exp.Anonymous) and tree.name.lower() in CAST_NAMES
    ):
        tree = tree.expressions[0] if isinstance(tree, exp.Anonymous) else tree.this
    return tree.name if isinstance(tree, exp.Column) else term.label
