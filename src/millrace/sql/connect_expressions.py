"""Expressions of Spark Connect, as the trees that Spark SQL would give.

Columns of `millrace.functions` are PySpark's own, and carry a message for Spark's server. Here that
message is read instead. Invariant: every kind of message is named here; any other is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlglot import exp

from millrace.sql.connect_literals import cast_tree, literal_tree, type_text
from millrace.sql.functions.nested.field_updates import update_tree
from millrace.sql.labels.call_labels import UDF
from millrace.sql.labels.spark_labels import SPARK_NAME
from millrace.sql.parser import read
from millrace.sql.typed_sql import ExpressionRefused, NotNative

ORIGIN: Final = "origin"
"""The key in `meta` of a column that was named through a dataset: the dataset's number."""
SUBQUERY: Final = "__subquery"
OUTER: Final = "__outer"
"""The name of the call that marks a name which may be of a query around the dataset."""
"""The name of a call that stands for a dataset as a column; its arguments are its use, which is
`scalar` or `exists`, and the dataset's number."""
_QUALIFIERS_MAX: Final = 3
_TRY: Final = 3
_DESCENDING: Final = 2
_NULLS_FIRST: Final = 1
_FRAMES: Final = {1: "ROWS", 2: "RANGE"}
_USES: Final = {1: "scalar", 2: "exists", 4: "in"}
_BINARY: Final[dict[str, type[exp.Expression]]] = {
    "+": exp.Add,
    "-": exp.Sub,
    "*": exp.Mul,
    "/": exp.Div,
    "%": exp.Mod,
    "==": exp.EQ,
    "=": exp.EQ,
    "!=": exp.NEQ,
    "<=>": exp.NullSafeEQ,
    "<": exp.LT,
    "<=": exp.LTE,
    ">": exp.GT,
    ">=": exp.GTE,
    "and": exp.And,
    "or": exp.Or,
    "&": exp.BitwiseAnd,
    "|": exp.BitwiseOr,
    "^": exp.BitwiseXor,
    "like": exp.Like,
    "ilike": exp.ILike,
}
_WITH_UNITS: Final = frozenset({"timestampadd", "timestampdiff"})
"""Functions whose first argument is a word in SQL."""
_UNARY: Final[dict[str, type[exp.Expression]]] = {
    "not": exp.Not,
    "!": exp.Not,
    "~": exp.BitwiseNot,
}


def column_tree(column: Any) -> exp.Expression:  # noqa: ANN401 - a column of PySpark
    """A column of `millrace.functions`, or of Spark Connect, as a tree."""
    expression = getattr(column, "_expr", None)
    if expression is None:
        raise ExpressionRefused(
            "this is not a column that can be read here",
            found=f"{column!r} of type {type(column).__name__}",
            fix="use text, or a column made by `from millrace import functions as F`",
        )
    return expression_tree(expression.to_plan(None))


def expression_tree(message: Any) -> exp.Expression:  # noqa: ANN401 - a message of Spark Connect
    """A message as a tree."""
    kind = message.WhichOneof("expr_type")
    build = _KINDS.get(kind)
    if build is None:
        raise NotNative(f"an expression of kind {kind} has no form in SQL", fix="use SQL text")
    return build(getattr(message, kind))


def name_tree(text: str, origin: int | None = None) -> exp.Expression:
    """A name with dots and backticks as a column."""
    parts = [exp.to_identifier(part, quoted=True) for part in name_parts(text)]
    column = exp.Column(this=parts[-1])
    if len(parts) <= _QUALIFIERS_MAX + 1:
        keys = ("this", "table", "db", "catalog")
        column = exp.Column(**dict(zip(keys, reversed(parts), strict=False)))
        rest: list[exp.Expression] = []
    else:
        first, rest = parts[: _QUALIFIERS_MAX + 1], list(parts[_QUALIFIERS_MAX + 1 :])
        keys = ("catalog", "db", "table", "this")
        column = exp.Column(**dict(zip(keys, first, strict=True)))
    if origin is not None:
        column.meta[ORIGIN] = origin
    tree: exp.Expression = column
    for part in rest:
        tree = exp.Dot(this=tree, expression=part)
    return tree


def name_parts(text: str) -> list[str]:
    """The parts of a name between its dots; dots between backticks do not count."""
    parts, current, quoted = [], "", False
    letters = iter(range(len(text)))
    for at in letters:
        letter = text[at]
        if letter == "`" and quoted and text[at + 1 : at + 2] == "`":
            current += "`"
            next(letters)
        elif letter == "`":
            quoted = not quoted
        elif letter == "." and not quoted:
            parts.append(current)
            current = ""
        else:
            current += letter
    if quoted or not all([*parts, current]):
        raise ExpressionRefused(
            "this is not a name", found=text, fix="put backticks around a part with dots in it"
        )
    return [*parts, current]


def order_tree(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    """A sort order."""
    descending = message.direction == _DESCENDING
    given = message.null_ordering
    nulls_first = given == _NULLS_FIRST if given else not descending
    child = expression_tree(message.child)
    return exp.Ordered(this=child, desc=descending, nulls_first=nulls_first)


def _attribute(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    origin = message.plan_id if message.HasField("plan_id") else None
    return name_tree(message.unparsed_identifier, origin)


def _star(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    star: exp.Expression = exp.Star()
    if message.HasField("unparsed_target"):
        target = message.unparsed_target.removesuffix(".*")
        parts = [exp.to_identifier(part, quoted=True) for part in reversed(name_parts(target))]
        keys = ("table", "db", "catalog")
        star = exp.Column(this=exp.Star(), **dict(zip(keys, parts, strict=False)))
    if message.HasField("plan_id"):
        star.meta[ORIGIN] = message.plan_id
    return star


def _function(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    arguments = [expression_tree(argument) for argument in message.arguments]
    return function_tree(message.function_name, arguments, distinct=message.is_distinct)


def function_tree(
    name: str, arguments: Sequence[exp.Expression], *, distinct: bool = False
) -> exp.Expression:
    """A call by Spark's name of the function; operators are functions too."""
    lowered, given = name.lower(), [_bracketed(argument) for argument in arguments]
    if lowered in _BINARY and len(given) >= 2:  # noqa: PLR2004 - two sides
        tree = given[0]
        for right in given[1:]:
            tree = _BINARY[lowered](this=tree, expression=right)
        return tree
    if lowered in _UNARY and len(given) == 1:
        return _UNARY[lowered](this=given[0])
    if lowered == OUTER:
        arguments[0].meta[OUTER] = True
        return arguments[0]
    if lowered in ("when", "casewhen"):
        return _case(arguments)
    if lowered == "product":
        return _product(arguments[0])
    if lowered in _WITH_UNITS:
        unit = exp.Var(this=arguments[0].name)
        return exp.Anonymous(this=lowered, expressions=[unit, *arguments[1:]])
    if lowered == "in":
        return exp.In(this=given[0], expressions=list(given[1:]))
    parts = list(arguments)
    if distinct:
        parts = [exp.Distinct(expressions=parts)]
    return exp.Anonymous(this=lowered, expressions=parts)


def _product(factor: exp.Expression) -> exp.Expression:
    """`product`, which SQL has no function for: of doubles that are not null, null without any."""
    tree = read(
        "CASE WHEN count(factor) > 0 THEN aggregate("
        "collect_list(CAST(factor AS DOUBLE)), 1D, (whole, value) -> whole * value) END"
    )
    tree = tree.transform(
        lambda node: factor.copy() if node == exp.column("factor") else node, copy=False
    )
    tree.meta[SPARK_NAME] = exp.Anonymous(this="product", expressions=[factor])
    return tree


def _bracketed(tree: exp.Expression) -> exp.Expression:
    """An operand: another operator needs brackets to be written as text."""
    needs = isinstance(tree, exp.Binary | exp.Unary | exp.In | exp.Case) and not isinstance(
        tree, exp.Paren | exp.Dot | exp.Neg
    )
    return exp.Paren(this=tree) if needs else tree


def _case(arguments: Sequence[exp.Expression]) -> exp.Expression:
    pairs = list(zip(arguments[0::2], arguments[1::2], strict=False))
    branches = [exp.If(this=condition, true=value) for condition, value in pairs]
    default = arguments[-1] if len(arguments) % 2 else None
    return exp.Case(ifs=branches, default=default)


def _alias(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    inner = expression_tree(message.expr)
    names = [exp.to_identifier(name, quoted=True) for name in message.name]
    if len(names) > 1:
        return exp.Aliases(this=inner, expressions=names)
    tree = exp.Alias(this=inner, alias=names[0])
    if message.HasField("metadata"):
        tree.meta["metadata"] = message.metadata
    return tree


def _cast(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    to = message.type_str if message.HasField("type_str") else type_text(message.type)
    return cast_tree(expression_tree(message.expr), to, safe=message.eval_mode == _TRY)


def _window(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    window = exp.Window(this=expression_tree(message.window_function), over="OVER")
    if message.partition_spec:
        window.set("partition_by", [expression_tree(key) for key in message.partition_spec])
    if message.order_spec:
        window.set("order", exp.Order(expressions=[order_tree(o) for o in message.order_spec]))
    if message.HasField("frame_spec"):
        frame = message.frame_spec
        start, start_side = _bound(frame.lower, "PRECEDING")
        end, end_side = _bound(frame.upper, "FOLLOWING")
        spec = exp.WindowSpec(kind=_FRAMES[frame.frame_type], start=start, end=end)
        spec.set("start_side", start_side)
        spec.set("end_side", end_side)
        window.set("spec", spec)
    return window


def _bound(message: Any, unbounded: str) -> tuple[object, str | None]:  # noqa: ANN401 - as above
    kind = message.WhichOneof("boundary")
    if kind == "current_row":
        return "CURRENT ROW", None
    if kind == "unbounded":
        return "UNBOUNDED", unbounded
    value = expression_tree(message.value)
    if isinstance(value, exp.Neg):
        return value.this, "PRECEDING"
    return value, "FOLLOWING"


def _lambda(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    names = [exp.to_identifier(".".join(v.name_parts), quoted=True) for v in message.arguments]
    return exp.Lambda(this=expression_tree(message.function), expressions=names)


def _extract(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    child = _bracketed(expression_tree(message.child))
    return exp.Bracket(this=child, expressions=[expression_tree(message.extraction)])


def _updated(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    value = None
    if message.HasField("value_expression"):
        value = expression_tree(message.value_expression)
    struct = expression_tree(message.struct_expression)
    path = name_parts(message.field_name)
    tree = update_tree(struct, path, value)
    if len(path) == 1 and message.struct_expression.WhichOneof("expr_type") != "update_fields":
        change = exp.Anonymous(this="dropfield") if value is None else _with_field(value)
        tree.meta[SPARK_NAME] = exp.Anonymous(this="update_fields", expressions=[struct, change])
    return tree


def _with_field(value: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this="withfield", expressions=[value])


def _user_function(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    arguments = [expression_tree(argument) for argument in message.arguments]
    tree = exp.Anonymous(this=message.function_name, expressions=arguments)
    tree.meta[UDF] = message
    return tree


def _named_argument(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    return exp.Kwarg(this=exp.Var(this=message.key), expression=expression_tree(message.value))


def _subquery(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    use = _USES.get(message.subquery_type)
    if use is None or message.plan_id >= 0:  # Numbers of datasets are below 0.
        raise NotNative("a DataFrame as a column has no form in SQL", fix="use SQL text")
    number = exp.Literal.number(-message.plan_id)
    # PySpark 4.0 has no such field.
    values = [expression_tree(value) for value in getattr(message, "in_subquery_values", ())]
    return exp.Anonymous(this=SUBQUERY, expressions=[exp.Var(this=use), number, *values])


def _called(message: Any) -> exp.Expression:  # noqa: ANN401 - as above
    arguments = [expression_tree(argument) for argument in message.arguments]
    return function_tree(message.function_name, arguments)


_KINDS: Final[dict[str, Callable[[Any], exp.Expression]]] = {
    "literal": literal_tree,
    "unresolved_attribute": _attribute,
    "unresolved_function": _function,
    "expression_string": lambda message: read(message.expression),
    "unresolved_star": _star,
    "alias": _alias,
    "cast": _cast,
    "sort_order": order_tree,
    "lambda_function": _lambda,
    "window": _window,
    "unresolved_extract_value": _extract,
    "update_fields": _updated,
    "unresolved_named_lambda_variable": lambda message: exp.column(
        exp.to_identifier(".".join(message.name_parts), quoted=True)
    ),
    "common_inline_user_defined_function": _user_function,
    "call_function": _called,
    "named_argument_expression": _named_argument,
    "subquery_expression": _subquery,
}
