"""Rows of a subquery for all values that it can see of the query around it, at once.

The values of the outer columns that a subquery names are joined to its tables, and stay keys of its
groups, windows and first rows. The rows of the outer query then meet the subquery's rows by these
values, where null equals null. Invariant: a subquery that is one aggregate of all its rows has a
row for each of these values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from millrace.plan.builders.build_aggregate import has_aggregate, is_aggregate
from millrace.plan.builders.build_relation_join import join_on
from millrace.plan.builders.build_rows import distinct
from millrace.plan.builders.name_resolution import find, plan_column, resolve
from millrace.plan.builders.operators import all_of, named, project
from millrace.plan.nodes.join import JoinKind
from millrace.plan.relation import Attribute, Relation, picked_columns
from millrace.plan.statements.order_clauses import ordinal, row_count
from millrace.plan.statements.query_scope import QueryScope, columns_in, with_own_columns
from millrace.sql.parser import operands
from millrace.sql.typed_sql import NotNative

_DROPPED = ("from_", "joins", "laterals", "where", "order", "limit", "offset")
_PLAIN_GROUPS = frozenset({"expressions"})


@dataclass(frozen=True, slots=True)
class DomainRows:
    """The rows of a subquery; `keys` pairs outer columns with columns that have their values."""

    relation: Relation
    keys: tuple[tuple[str, str], ...]

    def conditions(self) -> list[exp.Expression]:
        """What holds for an outer row and its rows of the subquery."""
        return [
            exp.NullSafeEQ(this=plan_column(outer), expression=plan_column(inner))
            for outer, inner in self.keys
        ]


def domain_rows(scope: QueryScope, outer: Relation, query: exp.Select) -> DomainRows:
    """The rows of a subquery for the rows of the query around it."""
    number = scope.number()
    source, parts = scope.source(query)
    seen = _seen(outer, source, query)
    columns = [f"__d{number}_{at}" for at in range(len(seen))]
    domain = _domain(scope, outer, seen, columns)
    rows = with_own_columns(source, [*outer.node.schema.names, *columns])
    names = {
        old.column: new.column for old, new in zip(source.attributes, rows.attributes, strict=True)
    }
    conditions = [_renamed(part, names) for part in parts]
    marker = None
    if query.args.get("group") is None and _is_one_group(query):
        marker = f"__m{number}"
    joined = _joined(scope, domain, rows, conditions, marker)
    keys = [plan_column(column) for column in columns]
    tree = _by_keys(query, keys, marker)
    names_of_keys = [f"__k{number}_{at}" for at in range(len(keys))]
    tree.set("expressions", [*tree.expressions, *map(named, keys, names_of_keys)])
    result = scope.over(joined, tree).only_visible()
    count = len(result.visible) - len(keys)
    hidden = tuple(replace(a, hidden=True) for a in result.visible[count:])
    pairs = [(a.column, key.column) for a, key in zip(seen, hidden, strict=True)]
    return DomainRows(Relation(result.node, (*result.visible[:count], *hidden)), tuple(pairs))


def names_outer(scope: QueryScope, outer: Relation, query: exp.Select) -> bool:
    """Whether a subquery names a column of the query around it."""
    source, _ = scope.source(query)
    return bool(_seen(outer, source, query))


def _is_one_group(query: exp.Select) -> bool:
    """Whether a query without GROUP BY is an aggregate of all its rows."""
    if query.args.get("having") is None and not any(map(has_aggregate, query.expressions)):
        return False
    if query.args.get("qualify") or any(item.find(exp.Window) for item in query.expressions):
        raise NotNative("windows over an aggregate of the outer query's rows", fix="")
    return True


def _seen(outer: Relation, rows: Relation, query: exp.Select) -> list[Attribute]:
    """The outer columns that a subquery names anywhere."""
    seen: dict[str, Attribute] = {}
    for column in query.find_all(exp.Column):
        if isinstance(column.this, exp.Star) or find(column, rows.attributes) is not None:
            continue
        attribute = find(column, outer.attributes)
        if attribute is not None:
            seen[attribute.column] = attribute
    return list(seen.values())


def _domain(
    scope: QueryScope, outer: Relation, seen: Sequence[Attribute], columns: Sequence[str]
) -> Relation:
    """The values of outer columns, each combination once; users name them as they do outside."""
    pairs = [(column, a.column) for column, a in zip(columns, seen, strict=True)]
    attributes = [replace(a, column=c, hidden=False) for c, a in zip(columns, seen, strict=True)]
    values = Relation(picked_columns(outer.node, pairs), tuple(attributes))
    once = distinct(scope.context, values)
    named_columns = [(c, a.column) for c, a in zip(columns, once.visible, strict=True)]
    hidden = tuple(replace(a, hidden=True) for a in attributes)
    return Relation(picked_columns(once.node, named_columns), hidden)


def _joined(
    scope: QueryScope,
    domain: Relation,
    rows: Relation,
    parts: Sequence[exp.Expression],
    marker: str | None,
) -> Relation:
    """The subquery's rows beside the outer values; with a marker, values without rows stay."""
    attributes = (*rows.attributes, *domain.attributes)
    inside: list[exp.Expression] = []
    between: list[exp.Expression] = []
    later: list[exp.Expression] = []
    for part in parts:
        resolved = resolve(part, attributes)
        if columns_in(resolved) & set(domain.node.schema.names):
            (later if resolved.find(exp.Query) else between).append(resolved)
        else:
            (later if _names_domain(resolved, domain) else inside).append(resolved)
    rows = scope.kept(rows, inside)
    if marker is not None:
        passed = [(name, plan_column(name)) for name in rows.node.schema.names]
        marked = [*passed, (marker, exp.Boolean(this=True))]
        rows = rows.over(project(scope.context, rows.node, marked))
        if later:
            raise NotNative("a subquery inside a subquery of the outer query's rows", fix="")
    how: JoinKind = "left" if marker is not None else "inner" if between else "cross"
    both = join_on(scope.context, domain, rows, how, all_of(between) if between else None)
    whole = Relation(both.node, attributes)
    return scope.kept(whole, later)


def _names_domain(tree: exp.Expression, domain: Relation) -> bool:
    """Whether a subquery in a condition names an outer column."""
    inner = [column for query in tree.find_all(exp.Query) for column in query.find_all(exp.Column)]
    return any(
        not isinstance(column.this, exp.Star) and find(column, domain.attributes) is not None
        for column in inner
    )


def _by_keys(query: exp.Select, keys: Sequence[exp.Column], marker: str | None) -> exp.Select:
    """The query over given rows, for each value of the keys."""
    tree = query.copy()
    for name in _DROPPED:
        tree.set(name, None)
    clauses = [
        *tree.expressions,
        *(tree.args[k] for k in ("having", "qualify") if tree.args.get(k)),
    ]
    for window in [w for clause in clauses for w in clause.find_all(exp.Window)]:
        by = window.args.get("partition_by") or []
        window.set("partition_by", [*by, *(key.copy() for key in keys)])
    if marker is not None:
        there = plan_column(marker)
        tree.set("expressions", [_where(item, there) for item in tree.expressions])
        if tree.args.get("having"):
            tree.set("having", exp.Having(this=_where(tree.args["having"].this, there)))
    group = tree.args.get("group")
    if group is not None or marker is not None:
        tree.set("group", _group_of_keys(group, keys))
    return _first_of_keys(query, tree, keys)


def _group_of_keys(group: exp.Group | None, keys: Sequence[exp.Column]) -> exp.Group:
    """GROUP BY with further keys, which are in every grouping set."""
    if group is None:
        return exp.Group(expressions=[key.copy() for key in keys])
    clauses = {name: value for name, value in group.args.items() if value}
    if clauses.keys() - _PLAIN_GROUPS:
        raise NotNative("this GROUP BY in a subquery of the outer query's rows", fix="")
    return exp.Group(expressions=[*group.expressions, *(key.copy() for key in keys)])


def _where(tree: exp.Expression, there: exp.Expression) -> exp.Expression:
    """An expression whose aggregates take only the rows that are there."""
    if isinstance(tree, exp.Query):
        return tree
    if is_aggregate(tree):
        condition = there.copy()
        if isinstance(tree, exp.Filter):
            parts = operands(tree.expression.this, exp.And)
            condition, tree = all_of([condition, *parts]), tree.this
        return exp.Filter(this=tree.copy(), expression=exp.Where(this=condition))
    tree = tree.copy()
    for key, value in list(tree.args.items()):
        if isinstance(value, exp.Expression):
            tree.set(key, _where(value, there))
        elif isinstance(value, list):
            parts = [_where(p, there) if isinstance(p, exp.Expression) else p for p in value]
            tree.set(key, parts)
    return tree


def _first_of_keys(query: exp.Select, tree: exp.Select, keys: Sequence[exp.Column]) -> exp.Select:
    """LIMIT and OFFSET as numbers of the rows of each value of the keys."""
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None and offset is None:
        return tree
    order = query.args.get("order")
    orders = [] if order is None else [part.copy() for part in order.expressions]
    if query.args.get("distinct") or any(ordinal(part.this) is not None for part in orders):
        raise NotNative("first rows of a subquery of the outer query's rows", fix="")
    number = exp.Window(
        this=exp.Anonymous(this="row_number"),
        partition_by=[key.copy() for key in keys],
        order=exp.Order(expressions=orders or [exp.Ordered(this=keys[0].copy())]),
        over="OVER",
    )
    skipped = 0 if offset is None else row_count(offset.expression)
    parts: list[exp.Expression] = []
    if limit is not None:
        last = exp.Literal.number(row_count(limit.expression) + skipped)
        parts.append(exp.LTE(this=number, expression=last))
    if skipped:
        parts.append(exp.GT(this=number.copy(), expression=exp.Literal.number(skipped)))
    if tree.args.get("qualify"):
        raise NotNative("QUALIFY and LIMIT in a subquery of the outer query's rows", fix="")
    tree.set("qualify", exp.Qualify(this=all_of(parts)))
    return tree


def _renamed(tree: exp.Expression, names: dict[str, str]) -> exp.Expression:
    """A condition whose resolved columns have their new names."""
    return tree.copy().transform(
        lambda node: (
            plan_column(names[node.name])
            if isinstance(node, exp.Column) and node.meta.get("resolved")
            else node
        )
    )
