"""Builds one SELECT with all its clauses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlglot import exp

from millrace.plan.builders.build_aggregate import has_aggregate, is_aggregate
from millrace.plan.builders.build_rows import distinct
from millrace.plan.builders.build_select import expand_stars, select
from millrace.plan.builders.build_sort import sort
from millrace.plan.builders.generators.generator_items import with_generators
from millrace.plan.builders.name_resolution import find, is_resolved, plan_column
from millrace.plan.builders.operators import named
from millrace.plan.relation import Relation
from millrace.plan.statements.correlation import with_outer_names
from millrace.plan.statements.from_clause import from_rows
from millrace.plan.statements.grouping_clause import grouped_rows, with_group_values
from millrace.plan.statements.order_clauses import (
    check_ordinal,
    limited,
    ordered_and_limited,
    orders_of,
    ordinal,
)
from millrace.plan.statements.query_scope import QueryScope
from millrace.plan.statements.subqueries import conjuncts, filtered, with_subqueries
from millrace.sql.labels.spark_labels import spark_label
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import NotNative

_KNOWN: Final = frozenset(
    {"expressions", "from_", "joins", "laterals", "where", "group", "having", "windows"}
    | {"qualify", "distinct", "order", "sort", "cluster", "distribute", "limit", "offset"}
    | {"hint", "with_"}
)
_Change = Callable[[exp.Expression], exp.Expression]
_ORDER: Final = "__order"
_QUALIFY: Final = "__qualify"


def select_block(scope: QueryScope, tree: exp.Select) -> Relation:
    """The rows of one SELECT."""
    others = [key for key, value in tree.args.items() if value and key not in _KNOWN]
    if others:
        raise NotNative(
            f"{others[0]} in a query is not built here", found=tree.sql("spark"), fix=""
        )
    rows, conditions = from_rows(scope, tree)
    return select_over(scope, filtered(scope, rows, conditions), tree)


def select_over(scope: QueryScope, rows: Relation, tree: exp.Select) -> Relation:
    """The clauses of a SELECT behind WHERE, over its rows."""
    tree = _with_named_windows(tree)
    starred = expand_stars(rows, tree.expressions)
    rows, starred = with_generators(scope.context, rows, starred)
    items = _with_lateral_aliases(rows, starred)
    count = len(items)
    is_distinct = tree.args.get("distinct") is not None
    orders = [] if is_distinct else orders_of(tree)
    items += [named(_over_items(order, items[:count]), _ORDER) for order in orders]
    if tree.args.get("qualify") is not None:
        condition = _with_aliases(rows, tree.args["qualify"].this, items[:count])
        items.append(named(condition, _QUALIFY))
    items = [_labelled(scope, rows, item) for item in items]
    rows, tree, items = with_group_values(scope, rows, tree, items)
    rows, items = _grouped(scope, rows, tree, items, count)
    rows, items = with_subqueries(scope, rows, items)
    result = select(scope.context, rows, items)
    if tree.args.get("qualify") is not None:
        flag = plan_column(result.visible[-1].column)
        result = filtered(scope, result, [flag])
    if is_distinct:
        whole = distinct(scope.context, Relation(result.node, result.visible[:count]))
        return ordered_and_limited(scope, whole, tree)
    if orders:
        keys = result.visible[count : count + len(orders)]
        by = [_sorted_by(order, key.column) for order, key in zip(orders, keys, strict=True)]
        result = sort(scope.context, result, by)
    return limited(Relation(result.node, result.visible[:count]), tree)


def _grouped(
    scope: QueryScope,
    rows: Relation,
    tree: exp.Select,
    items: list[exp.Expression],
    count: int,
) -> tuple[Relation, list[exp.Expression]]:
    """The groups of the rows that HAVING keeps, and the items over them."""
    having = tree.args.get("having")
    if tree.args.get("group") is None and not any(map(has_aggregate, items)):
        if having is None:
            return rows, items
        if not has_aggregate(having.this):
            raise NotNative("HAVING without GROUP BY", found=having.sql("spark"), fix="")
    groups = grouped_rows(scope, rows, tree, items[:count])
    kept = []
    if having is not None:
        condition = _with_aliases(rows, having.this, items[:count], groups.is_key)
        kept = [groups.rewrite(part) for part in conjuncts(condition)]
    rewritten = [groups.rewrite_item(item) for item in items]
    return filtered(scope, groups.relation(), kept), rewritten


def _with_named_windows(tree: exp.Select) -> exp.Select:
    """The query with the definition of each window in place of its name."""
    windows = {window.name.lower(): window for window in tree.args.get("windows") or ()}
    if not windows:
        return tree

    def defined(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Window) or node.args.get("alias") is None:
            return node
        known = windows.get(node.alias.lower())
        if known is None:
            raise NotNative(f"the window {node.alias}", found=node.sql("spark"), fix="")
        parts = {
            key: node.args.get(key) or known.args.get(key)
            for key in ("partition_by", "order", "spec")
        }
        return exp.Window(this=node.this, over="OVER", **_copied(parts))

    out = tree.copy()
    out.set("windows", None)
    whole = out.transform(defined)
    assert isinstance(whole, exp.Select)
    return whole


def _copied(parts: dict[str, object]) -> dict[str, object]:
    return {
        key: [part.copy() for part in value] if isinstance(value, list) else value.copy()
        for key, value in parts.items()
        if isinstance(value, list | exp.Expression)
    }


def _with_lateral_aliases(rows: Relation, items: Sequence[exp.Expression]) -> list[exp.Expression]:
    """Items in which names of earlier items stand for their expressions."""
    out: list[exp.Expression] = []
    for item in items:
        aliases = _aliases(out)
        lateral = [
            column
            for column in item.find_all(exp.Column)
            if _single_name(column) in aliases and find(column, rows.attributes) is None
        ]
        if not lateral:
            out.append(item)
            continue
        changed = _transformed(item, lambda node: _alias_of(node, aliases, rows))  # noqa: B023 - called now
        if not isinstance(item, exp.Alias):
            marked = _transformed(
                item,
                lambda node: (
                    exp.Anonymous(this="lateralAliasReference", expressions=[node.copy()])
                    if node in lateral  # noqa: B023 - called now
                    else node
                ),
            )
            changed = named(changed, spark_label(marked))
        out.append(changed)
    return out


def _with_aliases(
    rows: Relation,
    tree: exp.Expression,
    items: Sequence[exp.Expression],
    is_key: Callable[[exp.Expression], bool] = lambda _: False,
) -> exp.Expression:
    """A condition with the expressions of aliases for their names.

    Keys of groups come before aliases, and in aggregates the names of the rows do.
    """
    aliases = _aliases(items)

    def changed(node: exp.Expression) -> exp.Expression:
        if is_aggregate(node):
            return _transformed(node, lambda inner: _alias_of(inner, aliases, rows), root=False)
        if (
            isinstance(node, exp.Column)
            and _single_name(node) in aliases
            and not (_is_of_rows(node, rows) and is_key(node))
        ):
            return _in_brackets(aliases[folded(node.name)])
        return node

    return _transformed(tree, changed) if aliases else tree


def _aliases(items: Sequence[exp.Expression]) -> dict[str, exp.Expression]:
    return {folded(item.alias): item.this for item in items if isinstance(item, exp.Alias)}


def _single_name(node: exp.Column) -> str | None:
    """The name of a column that is named without its table, as names are compared."""
    if is_resolved(node) or isinstance(node.this, exp.Star) or len(node.parts) > 1:
        return None
    return folded(str(node.name))


def _alias_of(
    node: exp.Expression, aliases: Mapping[str, exp.Expression], rows: Relation
) -> exp.Expression:
    """The expression of an alias, for a name that no table has; else the node itself."""
    if not isinstance(node, exp.Column) or _is_of_rows(node, rows):
        return node
    tree = aliases.get(_single_name(node) or "")
    return node if tree is None else _in_brackets(tree)


def _is_of_rows(node: exp.Column, rows: Relation) -> bool:
    """Whether a name is one of the rows' own."""
    return is_resolved(node) or find(node, rows.attributes) is not None


def _over_items(order: exp.Ordered, items: Sequence[exp.Expression]) -> exp.Expression:
    """What a row is sorted by, over the input: names of items stand for their expressions."""
    number = ordinal(order.this)
    if number is not None:
        return _body(items[check_ordinal(number, len(items), "ORDER BY")])
    labels: dict[str, exp.Expression] = {}
    for item in items:
        labels.setdefault(folded(_label_of(item)), item)

    def named_item(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and not is_resolved(node) and len(node.parts) == 1:
            item = labels.get(folded(node.name))
            if item is not None:
                return _in_brackets(_body(item))
        return node

    return _transformed(order.this, named_item)


def _transformed(tree: exp.Expression, change: _Change, *, root: bool = True) -> exp.Expression:
    """The tree with changed parts, subqueries left alone; without `root` it stays itself."""
    if isinstance(tree, exp.Query):
        return tree
    changed = change(tree) if root else tree
    if changed is not tree:
        return changed
    out = tree.copy()
    for key, value in list(out.args.items()):
        if isinstance(value, exp.Expression):
            out.set(key, _transformed(value, change))
        elif isinstance(value, list):
            out.set(
                key,
                [_transformed(p, change) if isinstance(p, exp.Expression) else p for p in value],
            )
    return out


def _in_brackets(tree: exp.Expression) -> exp.Expression:
    simple = isinstance(tree, exp.Column | exp.Literal | exp.Anonymous | exp.Paren)
    return tree.copy() if simple else exp.Paren(this=tree.copy())


def _body(item: exp.Expression) -> exp.Expression:
    return item.this if isinstance(item, exp.Alias) else item


def _label_of(item: exp.Expression) -> str:
    """The label of an item of the list."""
    if isinstance(item, exp.Alias):
        return str(item.alias)
    attribute = item.meta.get("attribute")
    return str(attribute.label) if attribute is not None else spark_label(item)


def _labelled(scope: QueryScope, rows: Relation, item: exp.Expression) -> exp.Expression:
    """An item with a subquery under Spark's name for it."""
    if isinstance(item, exp.Alias) or not item.find(exp.Query):
        return item
    return named(item, spark_label(with_outer_names(scope, rows, item)))


def _sorted_by(order: exp.Ordered, column: str) -> exp.Expression:
    out = order.copy()
    out.set("this", plan_column(column))
    return out
