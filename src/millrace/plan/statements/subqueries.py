"""Subqueries in expressions: each becomes a join with the rows around it.

As a condition of its own, EXISTS and IN become semi joins and anti joins. Inside other expressions
a subquery becomes a column: a value, or a flag that says whether there was a matching row.
Invariant: a join for a subquery never makes two rows of one, nor drops one unless it is the filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from millrace.plan.builders.build_aggregate import GroupedRows
from millrace.plan.builders.build_relation_join import join_on
from millrace.plan.builders.build_select import expand_stars, where
from millrace.plan.builders.name_resolution import plan_column, resolve
from millrace.plan.builders.operators import all_of, project
from millrace.plan.nodes.join import JoinKind
from millrace.plan.nodes.limit import Limit
from millrace.plan.relation import Relation, free_columns
from millrace.plan.statements.correlation import (
    InnerRows,
    KeyPair,
    Use,
    read_subquery,
    refused_columns,
)
from millrace.plan.statements.query_scope import QueryScope, hidden
from millrace.plan.statements.single_value import scalar_value
from millrace.sql.parser import operands
from millrace.sql.typed_sql import NotNative

FLAG = "__flag"


def filtered(
    scope: QueryScope, relation: Relation, conditions: Sequence[exp.Expression]
) -> Relation:
    """The rows for which all conditions are true; subqueries may be in them."""
    plain = [part for part in conditions if not part.find(exp.Query)]
    if plain:
        relation = where(scope.context, relation, all_of(plain))
    for part in conditions:
        for inside in conjuncts(with_not_inside(part)) if part.find(exp.Query) else ():
            relation = _filtered(scope, relation, inside)
    return relation


def with_subqueries(
    scope: QueryScope, relation: Relation, trees: Sequence[exp.Expression]
) -> tuple[Relation, list[exp.Expression]]:
    """The rows with a column for each subquery in the trees, and the trees over them."""
    out = []
    for tree in trees:
        relation, replaced = _replaced(scope, relation, tree)
        out.append(replaced)
    return relation, out


def _filtered(scope: QueryScope, relation: Relation, part: exp.Expression) -> Relation:
    bare, negated = _without_not(part)
    attributes = relation.attributes
    if isinstance(bare, exp.Exists):
        inner = _inner_rows(scope, relation, bare.this, "rows")
        return _semi(scope, relation, _some_row(inner), [], negated=negated)
    if (
        isinstance(bare, exp.In)
        and bare.args.get("query") is not None
        and not bare.this.find(exp.Query)
    ):
        values = _values(bare.this)
        inner = _inner_rows(scope, relation, bare.args["query"], "rows")
        pairs = _equalities(scope, inner, [resolve(v, attributes) for v in values])
        if not negated:
            return _semi(scope, relation, inner, pairs, negated=False)
        if len(values) > 1 or inner.is_correlated:
            unsure: list[exp.Expression] = [_or_unknown(all_of(pairs))]
            return _semi(scope, relation, inner, unsure, negated=True)
        relation = _without_unknown(scope, relation, inner, values[0])
        return _semi(scope, relation, inner, pairs, negated=True)
    relation, replaced = _replaced(scope, relation, part)
    return where(scope.context, relation, replaced)


def _inner_rows(
    scope: QueryScope, relation: Relation, query: exp.Expression, use: Use
) -> InnerRows:
    """The rows of a subquery, its own conditions applied."""
    inner = read_subquery(scope, relation, query, use)
    rows = filtered(scope, inner.relation, inner.inside)
    return replace(inner, relation=Relation(rows.node, inner.relation.attributes), inside=())


def _without_not(tree: exp.Expression) -> tuple[exp.Expression, bool]:
    negated = False
    while isinstance(tree, exp.Not | exp.Paren):
        negated = negated != isinstance(tree, exp.Not)
        tree = tree.this
    return tree, negated


def _semi(
    scope: QueryScope,
    relation: Relation,
    inner: InnerRows,
    pairs: list[exp.Expression],
    *,
    negated: bool,
) -> Relation:
    how: JoinKind = "anti" if negated else "semi"
    parts = [*pairs, *inner.conditions]
    condition = all_of(parts) if parts else None
    joined = join_on(scope.context, relation, inner.relation, how, condition)
    return relation.over(joined.node)


def _some_row(inner: InnerRows) -> InnerRows:
    """One row is enough to know that there is one; an aggregate over no keys always has one."""
    if inner.is_correlated:
        return inner
    node = Limit(inner.relation.node, 1)
    return replace(inner, relation=inner.relation.over(node))


def _values(tree: exp.Expression) -> list[exp.Expression]:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return list(tree.expressions) if isinstance(tree, exp.Tuple) else [tree]


def _equalities(
    scope: QueryScope, inner: InnerRows, values: Sequence[exp.Expression]
) -> list[exp.Expression]:
    """The values, which are resolved, compared with the columns of a subquery."""
    items = _inner_items(scope, inner)
    if len(items) != len(values):
        raise refused_columns(len(items), len(values), inner.query)
    return [
        exp.EQ(this=value.copy(), expression=item)
        for value, item in zip(values, items, strict=True)
    ]


def _inner_items(scope: QueryScope, inner: InnerRows) -> list[exp.Expression]:
    """The select list of a subquery over its inner columns."""
    del scope
    items = expand_stars(inner.relation, inner.items)
    bare = [item.this if isinstance(item, exp.Alias) else item for item in items]
    return [resolve(item, inner.relation.attributes) for item in bare]


def _or_unknown(condition: exp.Expression) -> exp.Expression:
    """True where a condition is true or unknown."""
    return exp.Anonymous(this="coalesce", expressions=[condition, exp.Boolean(this=True)])


def _without_unknown(
    scope: QueryScope, relation: Relation, inner: InnerRows, value: exp.Expression
) -> Relation:
    """Rows for which NOT IN can be true: all of them if there are no inner rows.

    Else those whose value is not null, if no inner row is.
    """
    rows, nulls, counted = _counts(scope, inner)
    joined = join_on(scope.context, relation, counted, "cross", None)
    zero = exp.Literal.number(0)
    known = exp.And(
        this=exp.Not(this=exp.Is(this=resolve(value, relation.attributes), expression=exp.Null())),
        expression=exp.EQ(this=plan_column(nulls), expression=zero.copy()),
    )
    possible = exp.Or(
        this=exp.EQ(this=plan_column(rows), expression=zero), expression=exp.Paren(this=known)
    )
    return relation.over(where(scope.context, joined, possible).node)


def _counts(scope: QueryScope, inner: InnerRows) -> tuple[str, str, Relation]:
    """One row with the number of inner rows and of those whose value is null."""
    (item,) = _inner_items(scope, inner)
    grouped = GroupedRows(scope.context, inner.relation, ())
    rows = grouped.rewrite(exp.Anonymous(this="count", expressions=[exp.Star()]))
    missing = exp.Is(this=item, expression=exp.Null())
    nulls = grouped.rewrite(exp.Anonymous(this="count_if", expressions=[missing]))
    number = scope.number()
    names = [f"__rows{number}", f"__nulls{number}"]
    node = project(
        scope.context, grouped.relation().node, list(zip(names, [rows, nulls], strict=True))
    )
    return names[0], names[1], Relation(node, tuple(hidden(name) for name in names))


def _replaced(
    scope: QueryScope, relation: Relation, tree: exp.Expression
) -> tuple[Relation, exp.Expression]:
    """The tree with columns for its subqueries, and the rows that have these columns."""
    if isinstance(tree, exp.Exists):
        return _exists_flag(scope, relation, tree)
    if isinstance(tree, exp.Not) and _is_in_query(_bare(tree.this)):
        return _in_flag(scope, relation, _bare(tree.this), negated=True)
    if _is_in_query(tree):
        return _in_flag(scope, relation, tree, negated=False)
    if isinstance(tree, exp.Query):
        inner = _inner_rows(scope, relation, tree, "value")
        joined, value = scalar_value(scope, relation, inner)
        return joined, value
    if not tree.find(exp.Query):
        return relation, tree
    out = tree.copy()
    for key, value in list(out.args.items()):
        if isinstance(value, exp.Expression):
            relation, part = _replaced(scope, relation, value)
            out.set(key, part)
        elif isinstance(value, list):
            parts = []
            for part in value:
                if isinstance(part, exp.Expression):
                    relation, replacement = _replaced(scope, relation, part)
                    parts.append(replacement)
                else:
                    parts.append(part)
            out.set(key, parts)
    return relation, out


def _exists_flag(
    scope: QueryScope, relation: Relation, tree: exp.Exists
) -> tuple[Relation, exp.Expression]:
    inner = _some_row(_inner_rows(scope, relation, tree.this, "keys"))
    pairs = inner.key_pairs()
    joined, flag = _flagged(scope, relation, inner, pairs)
    return joined, exp.Paren(this=_is_set(flag))


def _in_flag(
    scope: QueryScope, relation: Relation, tree: exp.Expression, *, negated: bool
) -> tuple[Relation, exp.Expression]:
    """Whether there is an equal row. As in Spark, IN and NOT IN are false where it is unknown."""
    values = _values(tree.this)
    if len(values) > 1:
        raise NotNative(
            "IN of several columns inside an expression", found=tree.sql("spark"), fix=""
        )
    inner = _inner_rows(scope, relation, tree.args["query"], "keys")
    if inner.is_correlated and negated:
        raise NotNative(
            "NOT IN with names of the outer query inside an expression",
            found=tree.sql("spark"),
            fix="",
        )
    relation, value = _replaced(scope, relation, values[0])
    value = resolve(value, relation.attributes)
    (item,) = _inner_items(scope, inner)
    joined, flag = _flagged(scope, relation, inner, [KeyPair(value, item), *inner.key_pairs()])
    if not negated:
        return joined, exp.Paren(this=_is_set(flag))
    rows, nulls, counted = _counts(scope, inner)
    joined = Relation(
        join_on(scope.context, joined, counted, "cross", None).node,
        (*joined.attributes, *counted.attributes),
    )
    zero = exp.Literal.number(0)
    unknown = exp.Or(
        this=exp.Is(this=value.copy(), expression=exp.Null()),
        expression=exp.GT(this=plan_column(nulls), expression=zero.copy()),
    )
    result = exp.Case(
        ifs=[
            exp.If(
                this=exp.EQ(this=plan_column(rows), expression=zero), true=exp.Boolean(this=True)
            ),
            exp.If(this=unknown, true=exp.Boolean(this=False)),
        ],
        default=exp.Not(this=exp.Paren(this=_is_set(flag))),
    )
    return joined, result


def _is_in_query(tree: exp.Expression) -> bool:
    return isinstance(tree, exp.In) and tree.args.get("query") is not None


def _bare(tree: exp.Expression) -> exp.Expression:
    while isinstance(tree, exp.Paren):
        tree = tree.this
    return tree


def with_not_inside(tree: exp.Expression) -> exp.Expression:
    """The condition with NOT moved to the parts of AND and OR: NOT IN is not the opposite of IN."""
    if not tree.find(exp.In) or not tree.find(exp.Query):
        return tree
    bare = _bare(tree)
    if isinstance(bare, exp.And | exp.Or):
        sides = [with_not_inside(bare.this), with_not_inside(bare.expression)]
        return exp.Paren(this=type(bare)(this=sides[0], expression=sides[1]))
    inner = _bare(bare.this) if isinstance(bare, exp.Not) else None
    if isinstance(inner, exp.Not):
        return with_not_inside(inner.this)
    if isinstance(inner, exp.And | exp.Or):
        other = exp.Or if isinstance(inner, exp.And) else exp.And
        sides = [
            with_not_inside(exp.Not(this=_in_brackets(side)))
            for side in (inner.this, inner.expression)
        ]
        return exp.Paren(this=other(this=sides[0], expression=sides[1]))
    return tree


def _in_brackets(tree: exp.Expression) -> exp.Expression:
    return tree if isinstance(tree, exp.Paren | exp.Not) else exp.Paren(this=tree)


def _is_set(flag: str) -> exp.Expression:
    return exp.Not(this=exp.Is(this=plan_column(flag), expression=exp.Null()))


def _flagged(
    scope: QueryScope,
    relation: Relation,
    inner: InnerRows,
    pairs: Sequence[KeyPair],
) -> tuple[Relation, str]:
    """The rows with a flag that is set where there is an inner row of equal values."""
    context = scope.context
    flag = f"{FLAG}{scope.number()}"
    keys = free_columns([f"{flag}_key"] * len(pairs), relation.node.schema.names)
    columns: list[tuple[str, exp.Expression]] = [
        *((name, pair.inner.copy()) for name, pair in zip(keys, pairs, strict=True)),
        (flag, exp.Boolean(this=True)),
    ]
    rows = Relation(
        project(context, inner.relation.node, columns), tuple(hidden(name) for name, _ in columns)
    )
    grouped = GroupedRows(context, rows, [plan_column(name) for name, _ in columns])
    once = Relation(grouped.relation().node, rows.attributes)
    equal = [pair.equality(plan_column(name)) for name, pair in zip(keys, pairs, strict=True)]
    joined = join_on(context, relation, once, "left", all_of(equal) if equal else None)
    return Relation(joined.node, (*relation.attributes, hidden(flag))), flag


def conjuncts(tree: exp.Expression) -> list[exp.Expression]:
    """The conditions that are joined by AND."""
    return operands(tree, exp.And, through_brackets=True)
