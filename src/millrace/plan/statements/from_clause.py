"""FROM: the tables of a query and their joins, with the conditions of WHERE that join them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from millrace.plan.builders.build_relation_join import join_on, join_using
from millrace.plan.builders.build_select import where
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.nodes.join import JoinKind
from millrace.plan.relation import Relation
from millrace.plan.statements.join_graph import joined, split
from millrace.plan.statements.lateral_joins import lateral_join, lateral_view
from millrace.plan.statements.query_scope import QueryScope, with_own_columns
from millrace.plan.statements.table_sources import one_row, table_source, with_pivots
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_KEEP_THE_LEFT = frozenset({"left", "semi", "anti"})


@dataclass(slots=True)
class _Tables:
    """Tables that are joined by inner joins, so far; `conditions` are those of their joins."""

    scope: QueryScope
    tables: list[Relation]
    conditions: list[exp.Expression] = field(default_factory=list)
    where: list[exp.Expression] = field(default_factory=list)
    """Conditions of WHERE, of which those on a left side may run before a left join."""
    after_cross: bool = False

    def whole(self) -> Relation:
        """All tables as one; conditions that are no keys stay."""
        if len(self.tables) > 1:
            self.tables = [joined(self.scope.context, self.tables, self.conditions)]
        return self.tables[0]

    @property
    def seen(self) -> Relation:
        """The attributes of all tables, to resolve names by."""
        attributes = [a for table in self.tables for a in table.attributes]
        return Relation(self.tables[0].node, tuple(attributes))

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return [name for table in self.tables for name in table.node.schema.names]

    def settle(self) -> Relation:
        """The tables as one, with all conditions applied."""
        whole = self.whole()
        for condition in self.conditions:
            whole = where(self.scope.context, whole, condition)
        self.conditions = []
        self.tables = [whole]
        return whole


def from_rows(scope: QueryScope, tree: exp.Select) -> tuple[Relation, list[exp.Expression]]:
    """The rows of FROM, and the conditions of WHERE that are left for a filter.

    Conditions with subqueries, and with names that no table has, are left as they are.
    """
    source = tree.args.get("from_")
    clause = tree.args.get("where")
    parts = split(clause.this) if clause is not None else []
    if source is None:
        return one_row(scope), parts
    first = _source(scope, source.this, ())
    tables = _Tables(scope, [first])
    joins = [*(source.this.args.get("joins") or ()), *(tree.args.get("joins") or ())]
    if not any(_kind(join) in ("right", "full") or join.args.get("pivots") for join in joins):
        tables.where = parts
    for join in joins:
        _add(tables, join)
        if join.args.get("pivots"):
            whole = with_pivots(scope, tables.settle(), join.args["pivots"])
            tables = _Tables(scope, [whole])
    laterals = [*(source.this.args.get("laterals") or ()), *(tree.args.get("laterals") or ())]
    plain, rest = _known(parts, tables.seen)
    tables.conditions += plain
    if not laterals:
        whole = tables.whole()
        return whole, [*tables.conditions, *rest]
    whole = tables.settle()
    for lateral in laterals:
        whole = lateral_view(scope.context, whole, lateral)
    return whole, rest


def _known(
    parts: Sequence[exp.Expression], seen: Relation
) -> tuple[list[exp.Expression], list[exp.Expression]]:
    """Conditions whose names all are of these tables, resolved; and the others as they are."""
    known, others = [], []
    for part in parts:
        try:
            resolved = None if part.find(exp.Query) else resolve(part, seen.attributes)
        except ExpressionRefused:
            resolved = None
        if resolved is None:
            others.append(part)
        else:
            known.append(resolved)
    return known, others


def _source(scope: QueryScope, tree: exp.Expression, used: Sequence[str]) -> Relation:
    return with_own_columns(table_source(scope, tree), used)


def _add(tables: _Tables, join: exp.Join) -> None:
    """Join one more table."""
    how = _kind(join)
    if isinstance(join.this, exp.Lateral):
        left, on = tables.settle(), join.args.get("on")
        tables.tables = [lateral_join(tables.scope, left, join.this, how, on)]
        return
    right = _source(tables.scope, join.this, tables.columns)
    using = [name.name for name in join.args.get("using") or ()]
    if join.method.upper() == "NATURAL":
        ours = {folded(a.label) for a in tables.seen.visible}
        using = [a.label for a in right.visible if folded(a.label) in ours]
    on = join.args.get("on")
    if how in ("right", "full") and tables.after_cross:
        raise NotNative(
            "a right or full join after a comma in FROM", found=join.sql("spark"), fix=""
        )
    if using:
        left = tables.settle()
        tables.tables = [join_using(tables.scope.context, left, right, how, using)]
        return
    if how in ("inner", "cross"):
        tables.tables.append(right)
        tables.after_cross = tables.after_cross or on is None
        parts = [] if on is None else split(on)
        plain = [part for part in parts if not part.find(exp.Query)]
        tables.conditions += [resolve(part, tables.seen.attributes) for part in plain]
        if len(plain) < len(parts):
            asked = [part for part in parts if part.find(exp.Query)]
            tables.tables = [tables.scope.kept(tables.settle(), asked)]
        return
    if how in _KEEP_THE_LEFT and len(tables.tables) > 1:
        known, rest = _known(tables.where, tables.seen)
        tables.conditions += known
        tables.where[:] = rest
    tables.tables = [join_with_subqueries(tables.scope, tables.settle(), right, how, on)]


def join_with_subqueries(
    scope: QueryScope, left: Relation, right: Relation, how: JoinKind, on: exp.Expression | None
) -> Relation:
    """A join of two sides; subqueries of its condition are columns of a side."""
    seen = (*left.attributes, *right.attributes)
    if on is None or not on.find(exp.Query):
        condition = None if on is None else resolve(on, seen)
        return join_on(scope.context, left, right, how, condition)
    (wider_left, wider_right), condition = scope.as_columns([left, right], on)
    both = (*wider_left.attributes, *wider_right.attributes)
    joined = join_on(scope.context, wider_left, wider_right, how, resolve(condition, both))
    if how in ("semi", "anti"):
        return left.over(joined.node)
    kept = [a for a in joined.attributes if not a.hidden or a in seen]
    return Relation(joined.node, tuple(kept))


def _kind(join: exp.Join) -> JoinKind:
    side, kind = join.side.upper(), join.kind.upper()
    known: dict[tuple[str, str], JoinKind] = {
        ("", ""): "inner",
        ("", "INNER"): "inner",
        ("", "CROSS"): "cross",
        ("LEFT", ""): "left",
        ("LEFT", "OUTER"): "left",
        ("RIGHT", ""): "right",
        ("RIGHT", "OUTER"): "right",
        ("FULL", ""): "full",
        ("FULL", "OUTER"): "full",
        ("LEFT", "SEMI"): "semi",
        ("", "SEMI"): "semi",
        ("LEFT", "ANTI"): "anti",
        ("", "ANTI"): "anti",
    }
    how = known.get((side, kind))
    if how is None or join.method.upper() not in ("", "NATURAL"):
        raise NotNative("this join is not built here", found=join.sql("spark"), fix="")
    return how
