"""Spark's grammar for sqlglot, without sqlglot's knowledge of functions.

Invariant: a call stays a call by its name. Operators bind as in Spark: `|` weakest, then `^`, `&`,
shifts, and `||` together with `+` and `-`. Forms with words in their brackets become the call that
Spark makes of them: `trim(BOTH 'x' FROM s)` is `trim('x', s)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType


class BitwiseUnsignedShift(exp.Binary, exp.Expression):
    """`a >>> b`: bits move to the right, and zeros follow."""


_SHIFT: Final = 3
_RANKS: Final[dict[type[exp.Binary], int]] = {
    exp.BitwiseOr: 0,
    exp.BitwiseXor: 1,
    exp.BitwiseAnd: 2,
    exp.BitwiseLeftShift: _SHIFT,
    exp.BitwiseRightShift: _SHIFT,
    BitwiseUnsignedShift: _SHIFT,
}
"""How tightly an operator binds."""
_OF_UNITS: Final = (
    *("DATEADD", "DATE_ADD", "TIMESTAMPADD", "DATEDIFF", "DATE_DIFF", "TIMESTAMPDIFF", "TIMEDIFF"),
)
"""Functions whose first argument can be a word: `datediff(MONTH, start, end)`."""
_UNITS: Final = frozenset(
    {
        *("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND"),
        *("MILLISECOND", "MICROSECOND"),
    }
)
_WITH_UNIT: Final = 3
_SIDES: Final = {"BOTH": "trim", "LEADING": "ltrim", "TRAILING": "rtrim"}


def _with_unit(name: str) -> Callable[[Any], Any]:
    return lambda self: self._parse_with_unit(name)


class PlainSparkParser(SparkParser):
    """Every call is read as an anonymous one."""

    COLON_IS_VARIANT_EXTRACT = True
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF")
    }
    FUNCTION_PARSERS: ClassVar[dict[str, Callable[[Any], Any]]] = {
        **{name: SparkParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")},
        "TRIM": lambda self: self._parse_trim_call(),
        "SUBSTRING": lambda self: self._parse_with_words("substring", "substring", "FROM", "FOR"),
        "SUBSTR": lambda self: self._parse_with_words("substr", "substring", "FROM", "FOR"),
        "OVERLAY": lambda self: self._parse_with_words(
            "overlay", "overlay", "PLACING", "FROM", "FOR"
        ),
        "POSITION": lambda self: self._parse_with_words("position", "locate", "IN"),
        **{name: _with_unit(name.lower()) for name in _OF_UNITS},
    }
    FUNC_TOKENS: ClassVar[set[TokenType]] = {*SparkParser.FUNC_TOKENS, TokenType.BETWEEN}
    TERM: ClassVar[dict[TokenType, Any]] = {**SparkParser.TERM, TokenType.DPIPE: exp.DPipe}
    UNARY_PARSERS: ClassVar[dict[TokenType, Any]] = {
        **SparkParser.UNARY_PARSERS,
        TokenType.PLUS: lambda self: self.expression(
            exp.Anonymous(this="positive", expressions=[self._parse_unary()])
        ),
    }

    def _parse_types(self, *args: Any, **kwargs: Any) -> exp.Expr | None:  # noqa: ANN401 - sqlglot's
        """A type; sqlglot does not know VOID, which only a cast names."""
        if self._prev and self._prev.token_type == TokenType.ALIAS and self._match_texts({"VOID"}):
            return exp.DataType(this=exp.DType.NULL)
        return super()._parse_types(*args, **kwargs)

    def _parse_bitwise(self) -> exp.Expr | None:
        """Terms between operators of bits, those that bind tighter first."""
        terms = [self._parse_term()]
        waiting: list[type[exp.Binary]] = []
        while (operator := self._parse_bitwise_operator()) is not None:
            while waiting and _RANKS[waiting[-1]] >= _RANKS[operator]:
                self._join_last(terms, waiting.pop())
            waiting.append(operator)
            terms.append(self._parse_term())
        while waiting:
            self._join_last(terms, waiting.pop())
        return terms[0]

    def _join_last(self, terms: list[exp.Expr | None], operator: type[exp.Binary]) -> None:
        right = terms.pop()
        terms[-1] = self.expression(operator(this=terms[-1], expression=right))

    def _parse_bitwise_operator(self) -> type[exp.Binary] | None:
        if self._match_set(self.BITWISE):
            return self.BITWISE[self._prev.token_type]
        if self._match_pair(TokenType.LT, TokenType.LT):
            return exp.BitwiseLeftShift
        if self._match_pair(TokenType.GT, TokenType.GT):
            return BitwiseUnsignedShift if self._match(TokenType.GT) else exp.BitwiseRightShift
        return None

    def _parse_value(self, values: bool = True) -> exp.Tuple | None:  # noqa: FBT001, FBT002
        """A row of VALUES; behind one without brackets, AS names the table and not the value."""
        if self._curr.token_type == TokenType.L_PAREN:
            return super()._parse_value(values)
        value = self._parse_disjunction()
        return None if value is None else self.expression(exp.Tuple(expressions=[value]))

    def _parse_trim_call(self) -> exp.Expr:
        """`trim(s)`, `trim('x', s)`, or `trim(BOTH 'x' FROM s)`."""
        name = "trim"
        if self._match_texts(_SIDES):
            name = _SIDES[self._prev.text.upper()]
        arguments = [] if self._match(TokenType.FROM) else self._parse_arguments()
        if self._prev.token_type == TokenType.FROM or self._match(TokenType.FROM):
            arguments.append(self._parse_bitwise())
        return self.expression(exp.Anonymous(this=name, expressions=arguments))

    def _parse_with_words(self, plain: str, worded: str, *words: str) -> exp.Expr:
        """A call whose arguments have commas between them, or words: then it is called `worded`."""
        arguments: list[Any] = self._parse_csv(
            self._parse_bitwise if "IN" in words else self._parse_argument
        )
        name = plain
        for word in words:
            if self._match_text_seq(word):
                name = worded
                arguments.append(self._parse_bitwise())
        return self.expression(exp.Anonymous(this=name, expressions=arguments))

    def _parse_with_unit(self, name: str) -> exp.Expr:
        """A call whose first argument of three is a unit of time, which is no column."""
        arguments = self._parse_arguments()
        first = arguments[0] if len(arguments) == _WITH_UNIT else None
        if isinstance(first, exp.Column) and first.name.upper() in _UNITS and not first.table:
            arguments[0] = exp.var(first.name.upper())
        return self.expression(exp.Anonymous(this=name, expressions=arguments))

    def _parse_arguments(self) -> list[Any]:
        return self._parse_csv(self._parse_argument)

    def _parse_argument(self) -> exp.Expr | None:
        return self._parse_lambda(alias=True)


class PlainSparkGenerator(SparkGenerator):
    """Writes what `PlainSparkParser` reads."""

    TABLESAMPLE_SEED_KEYWORD = "REPEATABLE"
    SUPPORTS_TEMPORAL_PRECISION = True
    TYPE_MAPPING: ClassVar[dict[Any, Any]] = {
        **SparkGenerator.TYPE_MAPPING,
        exp.DType.TIME: "TIME",  # Which sqlglot takes for a timestamp.
        exp.DType.NULL: "VOID",
    }
    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **SparkGenerator.TRANSFORMS,
        exp.BitwiseLeftShift: lambda self, node: self.binary(node, "<<"),
        exp.BitwiseRightShift: lambda self, node: self.binary(node, ">>"),
        BitwiseUnsignedShift: lambda self, node: self.binary(node, ">>>"),
        exp.JSONExtract: lambda self, node: f"{self.sql(node, 'this')}:{_path(node.expression)}",
    }


def _path(path: exp.Expression) -> str:
    """The path behind a colon: `a.b[0]`."""
    text = ""
    for part in path.expressions:
        if isinstance(part, exp.JSONPathKey):
            text += f".`{part.this}`" if text else f"`{part.this}`"
        elif isinstance(part, exp.JSONPathSubscript):
            text += f"[{part.this}]"
    return text


class PlainSpark(Spark):
    """Spark's grammar without sqlglot's knowledge of functions."""

    Parser = PlainSparkParser
    Generator = PlainSparkGenerator
