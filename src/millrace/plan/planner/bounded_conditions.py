"""Whether a file can have a row for which a condition is true, by the bounds of its values.

Invariant: the answer is no only if the condition is true for no row of the file. What is not
understood, and what is not known of a file, is answered with yes.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.scan.file_bounds import ROWS, high_of, low_of, nulls_of
from millrace.sql.condition_parts import typed_expression
from millrace.sql.expressions import Expression
from millrace.sql.parser import LITERAL, operands, read
from millrace.sql.sql_mode import in_ansi_mode
from millrace.sql.typed_sql import ExpressionRefused, quoted, text_literal
from millrace.sql.types import (
    BOOLEAN,
    DATE,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    SqlType,
    from_arrow,
    in_other_form,
)

_FIXED: Final = (exp.Literal, exp.Neg, exp.Paren, exp.Cast, exp.DataType, exp.DataTypeParam)
"""What a value is made of that is the same for every row."""
_TURNED: Final[dict[type[exp.Expression], type[exp.Expression]]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.EQ: exp.EQ,
}
_TIMES: Final = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})
_WILD: Final = "%_\\"


def possible_files(condition: Expression, schema: pa.Schema, bounds: pa.Schema) -> str | None:
    """A condition on files in the engine's SQL, over their bounds; None if it leaves out none."""
    if condition.raises:
        return None
    try:
        return _Possible(schema, bounds).of(read(condition.text))
    except ExpressionRefused:
        return None


class _Possible:
    """Writes conditions on bounds. None stands for a condition that is true for every file."""

    def __init__(self, schema: pa.Schema, bounds: pa.Schema) -> None:
        self._schema = schema
        self._bounds = bounds

    def of(self, tree: exp.Expression) -> str | None:
        """Whether a condition can be true."""
        match tree:
            case exp.Paren(this=exp.Expression() as inner):
                return self.of(inner)
            case exp.And():
                parts = [self.of(part) for part in operands(tree, exp.And)]
                return " AND ".join(part for part in parts if part) or None
            case exp.Or():
                return self._either([self.of(part) for part in operands(tree, exp.Or)])
            case exp.Between():
                low = self._compared(exp.GTE, tree.this, tree.args["low"])
                high = self._compared(exp.LTE, tree.this, tree.args["high"])
                return " AND ".join(part for part in (low, high) if part) or None
            case exp.In(expressions=values) if not tree.args.get("query"):
                return self._either([self._compared(exp.EQ, tree.this, one) for one in values])
            case exp.Is(this=column, expression=exp.Null()):
                return self._null_count(column, "> 0")
            case exp.Not(this=exp.Is(this=column, expression=exp.Null())):
                return self._null_count(column, f"< {quoted(ROWS)}")
            case exp.Like(this=column, expression=exp.Literal() as pattern):
                return self._begins(column, str(pattern.this))
            case exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.EQ():
                kind: type[exp.Expression] = type(tree)
                if isinstance(tree.this, exp.Column):
                    return self._compared(kind, tree.this, tree.expression)
                return self._compared(_TURNED[kind], tree.expression, tree.this)
            case _:
                return None

    def _either(self, parts: list[str | None]) -> str | None:
        known = [f"({part})" for part in parts if part]
        return f"({' OR '.join(known)})" if known and len(known) == len(parts) else None

    def _compared(
        self, kind: type[exp.Expression], column: exp.Expression, value: exp.Expression
    ) -> str | None:
        name = self._name(column)
        if name is None or not all(map(_is_fixed, value.walk())):
            return None
        of_column = from_arrow(self._schema.field(name).type)
        of_value = typed_expression(value, self._schema)
        if not _keeps_order(of_column, of_value.type):
            return None
        # NaN is above all bounds of floats, so nothing is known of their highest value.
        has_high = not of_column.is_floating
        low = exp.column(low_of(name), quoted=True)
        high = exp.column(high_of(name), quoted=True)
        parts = []
        if kind in (exp.LT, exp.LTE, exp.EQ):
            below = exp.LTE if kind is exp.EQ else kind
            parts.append(self._sql(below(this=low, expression=value.copy())))
        if kind in (exp.GT, exp.GTE, exp.EQ) and has_high:
            above = exp.GTE if kind is exp.EQ else kind
            parts.append(self._sql(above(this=high, expression=value.copy())))
        some = self._null_count(column, f"< {quoted(ROWS)}")
        known = [f"coalesce({part}, true)" for part in parts]
        return " AND ".join([*known, *([some] if some else [])]) or None

    def _begins(self, column: exp.Expression, pattern: str) -> str | None:
        """Whether a text can begin as a pattern of LIKE does, up to its first wildcard."""
        name = self._name(column)
        size = next((n for n, sign in enumerate(pattern) if sign in _WILD), len(pattern))
        if name is None or not size or from_arrow(self._schema.field(name).type) != STRING:
            return None
        begin = text_literal(pattern[:size])
        low, high = quoted(low_of(name)), quoted(high_of(name))
        return (
            f"coalesce(left({low}, {size}) <= {begin}, true)"
            f" AND coalesce(left({high}, {size}) >= {begin}, true)"
        )

    def _null_count(self, column: exp.Expression, compared: str) -> str | None:
        name = self._name(column)
        if name is None or nulls_of(name) not in self._bounds.names:
            return None
        return f"coalesce({quoted(nulls_of(name))} {compared}, true)"

    def _name(self, tree: exp.Expression) -> str | None:
        """The column that a tree is, if its bounds are known."""
        if not isinstance(tree, exp.Column):
            return None
        column = typed_expression(tree, self._schema)
        if not column.is_column:
            return None
        (name,) = column.columns
        is_other = in_other_form(self._schema.field(name).type)
        return name if low_of(name) in self._bounds.names and not is_other else None

    def _sql(self, tree: exp.Expression) -> str:
        return typed_expression(tree, self._bounds).sql


def _is_fixed(node: object) -> bool:
    suffixed = isinstance(node, exp.Anonymous) and node.name.startswith(LITERAL)
    return suffixed or isinstance(node, _FIXED)


def _keeps_order(column: SqlType, value: SqlType) -> bool:
    """Whether a column is compared with a value in the order of its bounds."""
    if column.is_numeric and value.is_numeric:
        return True
    if column in _TIMES and value in _TIMES:
        return True
    if column in _TIMES and value == STRING:
        return in_ansi_mode()  # Then the text is turned into a time, not the time into text.
    return column == value and column in (STRING, BOOLEAN)
