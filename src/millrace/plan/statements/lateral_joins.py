"""LATERAL: functions and subqueries in FROM that see the columns of the tables before them."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from millrace.plan.builders.build_aggregate import has_aggregate
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_relation_join import join_on
from millrace.plan.builders.build_select import attribute_tree, expand_stars, select, where
from millrace.plan.builders.generators.build_generate import Generator, generate, generator_of
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.builders.operators import all_of
from millrace.plan.nodes.join import JoinKind
from millrace.plan.relation import Relation
from millrace.plan.statements.domain_rows import domain_rows, names_outer
from millrace.plan.statements.query_scope import QueryScope, aliased, with_own_columns
from millrace.sql.typed_sql import NotNative


def lateral_view(
    context: BuildContext, relation: Relation, tree: exp.Lateral, *, outer: bool = False
) -> Relation:
    """Each row with each row that a function makes of it."""
    call = generator_of(tree.this)
    if call is None:
        raise NotNative("this lateral view is not built here", found=tree.sql("spark"), fix="")
    alias = tree.args.get("alias")
    labels = [name.name for name in (alias.args.get("columns") or ())] if alias else []
    table = (alias.name,) if alias is not None and alias.name else ()
    outer = outer or call.outer or bool(tree.args.get("outer"))
    call = Generator(call.name, call.arguments, outer)
    rows, _ = generate(context, relation, call, labels, table)
    return rows


def lateral_join(
    scope: QueryScope,
    left: Relation,
    tree: exp.Lateral,
    how: JoinKind,
    on: exp.Expression | None,
) -> Relation:
    """Each row with the rows that a function or a subquery makes of it."""
    if how not in ("inner", "cross", "left"):
        raise NotNative(f"a lateral {how} join", found=tree.sql("spark"), fix="")
    always = on is None or (isinstance(on, exp.Boolean) and on.this)
    if not isinstance(tree.this, exp.Subquery):
        if how == "left" and not always:
            raise NotNative("a condition of a lateral left join", found=tree.sql("spark"), fix="")
        rows = lateral_view(scope.context, left, tree, outer=how == "left")
        return rows if on is None or always else where(scope.context, rows, on)
    query = tree.this.this
    while isinstance(query, exp.Subquery):
        query = query.this
    if not isinstance(query, exp.Select) or query.args.get("with_"):
        raise NotNative("this lateral subquery", found=tree.sql("spark"), fix="")
    condition = None if always else on
    if query.args.get("from_") is None and how != "left":
        return _calculated(scope, left, query, tree, condition)
    return _joined(scope, left, query, tree, how, condition)


def lateral_over(
    scope: QueryScope,
    left: Relation,
    tree: exp.Lateral,
    how: JoinKind,
    on: exp.Expression | None,
) -> Relation:
    """Each row with the rows of a query over a function of its columns.

    The query has a select list and conditions over the function's rows.
    """
    query = tree.this.this
    known = {"expressions", "from_", "where", "kind"}
    others = [key for key, value in query.args.items() if value and key not in known]
    clause = query.args.get("where")
    if others or any(map(has_aggregate, query.expressions)):
        raise NotNative("this query over a function of rows", found=query.sql("spark"), fix="")
    if how == "left" and (on is not None or clause is not None or not _passes(query)):
        raise NotNative("a lateral left join that calculates", found=query.sql("spark"), fix="")
    source = query.args["from_"].this
    call = exp.Lateral(this=source.this, alias=source.args.get("alias"))
    rows = lateral_view(scope.context, left, call, outer=how == "left")
    if clause is not None:
        rows = where(scope.context, rows, clause.this)
    made = Relation(rows.node, rows.attributes[len(left.attributes) :])
    items = [*map(attribute_tree, left.visible), *expand_stars(made, query.expressions)]
    both = select(scope.context, rows, items)
    count = len(left.visible)
    new = aliased(Relation(both.node, both.visible[count:]), tree.args.get("alias"))
    whole = Relation(both.node, (*both.visible[:count], *new.attributes))
    return whole if on is None else where(scope.context, whole, on)


def _passes(query: exp.Select) -> bool:
    """Whether a select list is columns and their fields, which are null where there is no row."""
    bare = [item.this if isinstance(item, exp.Alias) else item for item in query.expressions]
    return all(isinstance(item, exp.Column | exp.Star | exp.Dot) for item in bare)


def _calculated(
    scope: QueryScope,
    left: Relation,
    query: exp.Select,
    tree: exp.Lateral,
    on: exp.Expression | None,
) -> Relation:
    """A subquery without tables: values of each row."""
    known = {"expressions", "where", "order", "kind"}
    others = [key for key, value in query.args.items() if value and key not in known]
    items = expand_stars(left, query.expressions)
    if others or any(map(has_aggregate, items)) or any(item.find(exp.Query) for item in items):
        return _joined(scope, left, query, tree, "inner", on)
    clause = query.args.get("where")
    rows = scope.kept(left, [clause.this]) if clause is not None else left
    both = select(scope.context, rows, [*map(attribute_tree, rows.visible), *items])
    count = len(rows.visible)
    new = aliased(Relation(both.node, both.visible[count:]), tree.args.get("alias"))
    whole = Relation(both.node, (*both.visible[:count], *new.attributes))
    return whole if on is None else where(scope.context, whole, on)


def _joined(
    scope: QueryScope,
    left: Relation,
    query: exp.Select,
    tree: exp.Lateral,
    how: JoinKind,
    on: exp.Expression | None,
) -> Relation:
    if not names_outer(scope, left, query):
        right = with_own_columns(
            aliased(scope.query(query), tree.args.get("alias")), left.node.schema.names
        )
        both = (*left.attributes, *right.attributes)
        condition = None if on is None else resolve(on, both)
        how = "inner" if how == "cross" and condition is not None else how
        return join_on(scope.context, left, right, how, condition)
    rows = domain_rows(scope, left, query)
    hidden = tuple(a for a in rows.relation.attributes if a.hidden)
    named = aliased(rows.relation.only_visible(), tree.args.get("alias"))
    right = Relation(named.node, (*named.attributes, *hidden))
    own = with_own_columns(right, left.node.schema.names)
    names = {o.column: n.column for o, n in zip(right.attributes, own.attributes, strict=True)}
    keys = replace(rows, keys=tuple((a, names[b]) for a, b in rows.keys))
    parts = keys.conditions()
    if on is not None:
        both = (*left.attributes, *(a for a in own.attributes if not a.hidden))
        parts.append(resolve(on, both))
    how = "inner" if how == "cross" and parts else how
    joined = join_on(scope.context, left, own, how, all_of(parts) if parts else None)
    visible = tuple(a for a in own.attributes if not a.hidden)
    return Relation(joined.node, (*left.attributes, *visible))
