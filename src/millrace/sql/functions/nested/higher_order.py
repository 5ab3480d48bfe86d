"""Functions that take lambdas: transform, filter, aggregate and their kind.

Invariant: a lambda is evaluated for exactly the elements for which Spark evaluates it, if it can
fail. Variables have the types of elements, so a lambda is typed as any other expression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from millrace.sql.functions.conditions import as_condition
from millrace.sql.functions.function_registry import Typer, tree_function
from millrace.sql.functions.nested import nested_sql
from millrace.sql.functions.nested.map_functions import plain_keys
from millrace.sql.functions.nested.nested_sql import HIGHER_ORDER, field, has_null, not_here
from millrace.sql.typed_sql import (
    ExpressionRefused,
    NotNative,
    TypedSql,
    as_type,
    combined,
    read_columns,
)
from millrace.sql.types import (
    BOOLEAN,
    INT,
    SqlType,
    array_of,
    common,
    map_of,
    to_duckdb,
    with_nulls,
)

_VARIABLE: Final = "namedlambdavariable()"
_PAIR: Final = 2
_TRIPLE: Final = 3


@dataclass(frozen=True, slots=True)
class LambdaVariable:
    """A variable of a lambda: the SQL of its value and its type."""

    sql: str
    type: SqlType
    never_null: bool


@dataclass(frozen=True, slots=True)
class LambdaBody:
    """A typed lambda and the name Spark gives it."""

    term: TypedSql
    label: str | None


def parameter(typer: Typer, number: int) -> str:
    """DuckDB's name of a lambda's variable, another one in each lambda inside of a lambda."""
    return f"__lambda{typer.lambda_depth}_{number}"


def lambda_body(
    typer: Typer, name: str, node: exp.Expression, variables: Sequence[LambdaVariable]
) -> LambdaBody:
    """The body of a lambda over these variables."""
    if not isinstance(node, exp.Lambda) or len(node.expressions) != len(variables):
        raise NotNative(
            f"{name} needs a lambda of {len(variables)} variables here",
            found=node.sql(dialect="spark"),
            fix="write, for example, x -> x + 1",
        )
    given = [variable.name.lower() for variable in node.expressions]
    if len(set(given)) < len(given):
        raise ExpressionRefused(
            "a lambda has two variables of one name",
            found=node.sql(dialect="spark"),
            fix="give each a name of its own",
        )
    bound = {
        written: TypedSql(
            sql=variable.sql,
            type=variable.type,
            label=_VARIABLE,
            never_null=variable.never_null,
        )
        for written, variable in zip(given, variables, strict=True)
    }
    term = typer.bound(bound).typed(node.this)
    label = None
    if term.label is not None:
        label = f"lambdafunction({', '.join([term.label, *[_VARIABLE] * len(given)])})"
    return LambdaBody(term, label)


def _label(name: str, parts: Sequence[TypedSql], bodies: Sequence[LambdaBody]) -> str | None:
    labels = [*(part.label for part in parts), *(body.label for body in bodies)]
    known = [label for label in labels if label is not None]
    return f"{name}({', '.join(known)})" if len(known) == len(labels) else None


def _array(typer: Typer, name: str, node: exp.Expression) -> TypedSql:
    term = typer.typed(node)
    if not term.type.is_array:
        raise not_here(name, term)
    return term


def _over_elements(
    typer: Typer, name: str, array: TypedSql, node: exp.Expression, *, index: bool
) -> tuple[LambdaBody, str]:
    """The body over an array's elements, and DuckDB's names of its variables."""
    item, at = parameter(typer, 0), parameter(typer, 1)
    variables = [LambdaVariable(item, array.type.element, never_null=not array.type.has_nulls)]
    names = item
    if index and isinstance(node, exp.Lambda) and len(node.expressions) == _PAIR:
        number = as_type(f"({at} - 1)", INT)
        variables.append(LambdaVariable(number, INT, never_null=True))
        names = f"{item}, {at}"
    return lambda_body(typer, name, node, variables), names


def _result(
    sql: str, kind: SqlType, name: str, parts: Sequence[TypedSql], bodies: Sequence[LambdaBody]
) -> TypedSql:
    terms = [*parts, *(body.term for body in bodies)]
    return TypedSql(
        sql=as_type(sql, kind),
        type=kind,
        columns=read_columns(terms),
        label=_label(name, parts, bodies),
        raises=any(term.raises for term in terms),
        never_null=all(part.never_null for part in parts),
    )


@tree_function("transform(a, x -> ...)", group=HIGHER_ORDER, least=2)
def _transform(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x = _array(typer, name, nodes[0])
    body, names = _over_elements(typer, name, x, nodes[1], index=True)
    if body.term.type.arrow is not None:
        raise not_here(name, body.term)
    kind = array_of(body.term.type, nulls=not body.term.never_null)
    sql = f"list_transform({x.sql}, lambda {names}: {body.term.sql})"
    return _result(sql, kind, name, [x], [body])


def _condition(name: str, body: LambdaBody) -> LambdaBody:
    if body.term.type != BOOLEAN:
        raise not_here(name, body.term)
    return LambdaBody(as_condition(body.term, name), body.label)


@tree_function("filter(a, x -> ...)", group=HIGHER_ORDER, least=2)
def _filter(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x = _array(typer, name, nodes[0])
    body, names = _over_elements(typer, name, x, nodes[1], index=True)
    test = _condition(name, body)
    sql = f"list_filter({x.sql}, lambda {names}: {test.term.sql})"
    return _result(sql, x.type, name, [x], [test])


@tree_function("exists(a, x -> ...); forall(a, x -> ...)", group=HIGHER_ORDER, least=2)
def _exists(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x = _array(typer, name, nodes[0])
    body, names = _over_elements(typer, name, x, nodes[1], index=False)
    test = _condition(name, body)
    decisive = "true" if name == "exists" else "false"
    other = "false" if name == "exists" else "true"
    if test.term.raises:
        sql = _until(x, names, test.term.sql, decisive, other)
        term = _result(sql, BOOLEAN, name, [x], [test])
        return combined(term.sql, BOOLEAN, [term], label=term.label)
    answers = f"list_transform({x.sql}, lambda {names}: {test.term.sql})"
    known = nested_sql.fresh_name(answers)
    sql = (
        f"list_extract(list_transform([{answers}], lambda {known}: CASE WHEN {known} IS NULL "
        f"THEN NULL WHEN list_contains({known}, {decisive}) THEN {decisive} "
        f"WHEN {has_null(known)} THEN NULL ELSE {other} END), 1)"
    )
    term = _result(sql, BOOLEAN, name, [x], [test])
    return combined(term.sql, BOOLEAN, [term], label=term.label)


def _until(x: TypedSql, item: str, test: str, decisive: str, other: str) -> str:
    """Evaluate a condition that can fail up to the element that decides, as Spark does.

    The state is 0 at first, 1 after a null and 2 when it is decided.
    """
    so_far, following = f"{item}_state", f"{item}_next"
    element = to_duckdb(x.type.element)
    wrapped = nested_sql.each_of(
        x.sql, lambda value: nested_sql.struct_literal([("state", "0"), ("item", value)])
    )
    first = nested_sql.struct_literal([("state", "0"), ("item", f"CAST(NULL AS {element})")])
    # The condition is over the name `item`, so the element gets this name.
    answer = (
        f"list_extract(list_transform([{field(following, 'item')}], lambda {item}: "
        f"CASE {test} WHEN {decisive} THEN 2 WHEN {other} THEN 0 ELSE 1 END), 1)"
    )
    state = field(so_far, "state")
    step = nested_sql.struct_literal(
        [
            ("state", f"CASE WHEN {state} = 2 THEN 2 ELSE greatest({state}, {answer}) END"),
            ("item", f"CAST(NULL AS {element})"),
        ]
    )
    reduced = f"list_reduce({wrapped}, lambda {so_far}, {following}: {step}, {first})"
    return f"CASE {field(reduced, 'state')} WHEN 2 THEN {decisive} WHEN 0 THEN {other} END"


@tree_function(
    "aggregate(a, start, (acc, x) -> ..., acc -> ...); "
    "reduce(a, start, (acc, x) -> ..., acc -> ...)",
    group=HIGHER_ORDER,
    least=3,
    most=4,
)
def _aggregate(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x, start = _array(typer, name, nodes[0]), typer.typed(nodes[1])
    kind = with_nulls(start.type)
    so_far, item = parameter(typer, 0), parameter(typer, 1)
    variables = [
        LambdaVariable(field(so_far, "acc"), kind, never_null=False),
        LambdaVariable(field(item, "item"), x.type.element, never_null=not x.type.has_nulls),
    ]
    merge = lambda_body(typer, name, nodes[2], variables)
    if with_nulls(merge.term.type) != kind or not to_duckdb(kind):
        raise not_here(name, start, merge.term)
    # DuckDB reduces values of one type, so the state and an element are fields of one struct.
    element = to_duckdb(x.type.element)
    state = to_duckdb(kind)
    wrapped = nested_sql.each_of(
        x.sql,
        lambda name: nested_sql.struct_literal([("acc", f"CAST(NULL AS {state})"), ("item", name)]),
    )
    first = nested_sql.struct_literal([("acc", start.sql), ("item", f"CAST(NULL AS {element})")])
    step = nested_sql.struct_literal(
        [("acc", merge.term.sql), ("item", f"CAST(NULL AS {element})")]
    )
    reduced = field(f"list_reduce({wrapped}, lambda {so_far}, {item}: {step}, {first})", "acc")
    bodies = [merge]
    sql, result = reduced, kind
    last = parameter(typer, 2)
    node = nodes[3] if len(nodes) > _TRIPLE else None
    if node is not None:
        finish = lambda_body(typer, name, node, [LambdaVariable(last, kind, never_null=False)])
        bodies.append(finish)
        result = finish.term.type
        sql = f"list_extract(list_transform([{reduced}], lambda {last}: {finish.term.sql}), 1)"
        sql = nested_sql.null_if_any(sql, x.sql)
    else:
        identity = TypedSql(sql=last, type=kind, label=_VARIABLE)
        bodies.append(LambdaBody(identity, f"lambdafunction({_VARIABLE}, {_VARIABLE})"))
    term = _result(sql, result, name, [x, start], bodies)
    return combined(term.sql, result, [term], label=term.label)


@tree_function("zip_with(a, b, (x, y) -> ...)", group=HIGHER_ORDER, least=3)
def _zip_with(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x, y = _array(typer, name, nodes[0]), _array(typer, name, nodes[1])
    item = parameter(typer, 0)
    variables = [
        LambdaVariable(field(item, "x"), x.type.element, never_null=False),
        LambdaVariable(field(item, "y"), y.type.element, never_null=False),
    ]
    body = lambda_body(typer, name, nodes[2], variables)

    def pairs(a: str, b: str) -> str:
        at = nested_sql.fresh_name(a, b)
        pair = nested_sql.struct_literal(
            [("x", f"list_extract({a}, {at})"), ("y", f"list_extract({b}, {at})")]
        )
        count = f"greatest(len({a}), len({b}))"
        rows = f"list_transform(range(1, {count} + 1), lambda {at}: {pair})"
        return nested_sql.null_if_any(rows, a, b)

    rows = nested_sql.named([x.sql, y.sql], pairs)
    kind = array_of(body.term.type, nulls=not body.term.never_null)
    sql = f"list_transform({rows}, lambda {item}: {body.term.sql})"
    return _result(sql, kind, name, [x, y], [body])


def _map_argument(typer: Typer, name: str, node: exp.Expression) -> TypedSql:
    term = typer.typed(node)
    if not term.type.is_map or not plain_keys(term.type.key):
        raise not_here(name, term)
    return term


def _over_entries(
    typer: Typer, name: str, kind: SqlType, node: exp.Expression
) -> tuple[LambdaBody, str]:
    entry = parameter(typer, 0)
    variables = [
        LambdaVariable(field(entry, "key"), kind.key, never_null=True),
        LambdaVariable(field(entry, "value"), kind.value, never_null=not kind.has_nulls),
    ]
    return lambda_body(typer, name, node, variables), entry


@tree_function("map_filter(m, (k, v) -> ...)", group=HIGHER_ORDER, least=2)
def _map_filter(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x = _map_argument(typer, name, nodes[0])
    body, entry = _over_entries(typer, name, x.type, nodes[1])
    test = _condition(name, body)
    kept = f"list_filter(map_entries({x.sql}), lambda {entry}: {test.term.sql})"
    return _result(f"map_from_entries({kept})", x.type, name, [x], [test])


@tree_function(
    "transform_keys(m, (k, v) -> ...); transform_values(m, (k, v) -> ...)",
    group=HIGHER_ORDER,
    least=2,
)
def _transform_map(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x = _map_argument(typer, name, nodes[0])
    body, entry = _over_entries(typer, name, x.type, nodes[1])
    made = f"list_transform(map_entries({x.sql}), lambda {entry}: {body.term.sql})"
    if name == "transform_values":
        kind = map_of(x.type.key, body.term.type, nulls=not body.term.never_null)
        return _result(f"map(map_keys({x.sql}), {made})", kind, name, [x], [body])
    if not plain_keys(body.term.type):
        raise not_here(name, body.term)
    kind = map_of(body.term.type, x.type.value, nulls=x.type.has_nulls)
    term = _result(f"map({made}, map_values({x.sql}))", kind, name, [x], [body])
    return combined(
        term.sql, kind, [term], label=term.label, raises=True, never_null=term.never_null
    )


@tree_function("map_zip_with(m, n, (k, v, w) -> ...)", group=HIGHER_ORDER, least=3)
def _map_zip_with(typer: Typer, name: str, nodes: list[exp.Expression]) -> TypedSql:
    x, y = (_map_argument(typer, name, node) for node in nodes[:2])
    key = common(x.type.key, y.type.key)
    if key is None or x.type.key != y.type.key:
        raise not_here(name, x, y)
    entry = parameter(typer, 0)
    variables = [
        LambdaVariable(field(entry, "k"), key, never_null=True),
        LambdaVariable(field(entry, "v"), x.type.value, never_null=False),
        LambdaVariable(field(entry, "w"), y.type.value, never_null=False),
    ]
    body = lambda_body(typer, name, nodes[2], variables)

    def keys(a: str, b: str) -> str:
        item = nested_sql.fresh_name(a, b)
        others = (
            f"list_filter(map_keys({b}), lambda {item}: NOT list_contains(map_keys({a}), {item}))"
        )
        return nested_sql.null_if_any(f"list_concat(map_keys({a}), {others})", a, b)

    def written(a: str, b: str) -> str:
        item = nested_sql.fresh_name(a, b)
        triple = nested_sql.struct_literal(
            [
                ("k", item),
                ("v", f"map_extract_value({a}, {item})"),
                ("w", f"map_extract_value({b}, {item})"),
            ]
        )
        rows = f"list_transform({keys(a, b)}, lambda {item}: {triple})"
        values = f"list_transform({rows}, lambda {entry}: {body.term.sql})"
        return f"map({keys(a, b)}, {values})"

    kind = map_of(key, body.term.type, nulls=not body.term.never_null)
    sql = nested_sql.named([x.sql, y.sql], written)
    return _result(sql, kind, name, [x, y], [body])
