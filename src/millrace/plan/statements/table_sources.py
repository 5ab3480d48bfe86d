"""The rows of a table in FROM: a table of WITH, a view, a query in brackets, VALUES, a function."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import project, typed
from millrace.plan.relation import Relation, relation_of
from millrace.plan.statements.pivots import pivoted
from millrace.plan.statements.query_scope import QueryScope, aliased
from millrace.sql.typed_sql import ExpressionRefused, NotNative
from millrace.sql.types import VOID, SqlType, common_with_text, to_arrow

ROW: str = "__row"


def table_source(scope: QueryScope, tree: exp.Expression) -> Relation:
    """The rows of a table in FROM, under its alias."""
    if tree.args.get("sample") is not None:
        raise NotNative("TABLESAMPLE is not built here", found=tree.sql("spark"), fix="")
    match tree:
        case exp.Subquery():
            relation = scope.query(tree.this)
        case exp.Values():
            relation = _values(scope, tree)
        case exp.Table(this=exp.Anonymous() as call):
            relation = _table_function(scope, call)
        case exp.Table(this=exp.Identifier()) if not _other_clauses(tree):
            relation = named_table(scope, tree)
        case _:
            raise NotNative("this table is not built here", found=tree.sql("spark"), fix="")
    for pivot in tree.args.get("pivots") or ():
        relation = aliased(pivoted(scope.context, relation, pivot), pivot.args.get("alias"))
    return aliased(relation, tree.args.get("alias"))


def named_table(scope: QueryScope, tree: exp.Table) -> Relation:
    """The table of WITH, or the view, of this name."""
    name = tuple(part.name for part in tree.parts)
    if len(name) == 1 and name[0].lower() in scope.tables:
        return scope.tables[name[0].lower()]
    catalog = scope.context.catalog
    relation = None if catalog is None else catalog.relation(name)
    if relation is None:
        raise ExpressionRefused(
            f"there is no table {'.'.join(name)}",
            found=f"tables of WITH: {', '.join(scope.tables) or 'none'}",
            fix="give it a name with ws.view(name, dataset)",
        )
    attributes = tuple(replace(a, qualifier=name) for a in relation.visible)
    return Relation(relation.node, attributes)


def one_row(scope: QueryScope) -> Relation:
    """One row of no visible column: the FROM of a query without one."""
    return Relation(_numbers(scope, 1).node, ())


def _other_clauses(tree: exp.Table) -> list[str]:
    known = {"this", "db", "catalog", "alias", "pivots", "joins", "laterals", "sample"}
    return [key for key, value in tree.args.items() if value and key not in known]


def _numbers(scope: QueryScope, count: int) -> Relation:
    """Rows with the numbers from 0 on."""
    rows = scope.context.local_rows
    if rows is None:
        raise NotNative("rows of no table are not built here", fix="")
    return relation_of(rows(pa.table({ROW: pa.array(range(count), pa.int64())})))


def _values(scope: QueryScope, tree: exp.Values) -> Relation:
    """The rows of VALUES, with Spark's names of their columns."""
    rows = [
        list(row.expressions) if isinstance(row, exp.Tuple) else [row] for row in tree.expressions
    ]
    if len({len(row) for row in rows}) != 1:
        raise ExpressionRefused(
            "the rows of VALUES have different numbers of columns",
            found=tree.sql("spark"),
            fix="give every row the same columns",
        )
    numbers = _numbers(scope, len(rows))
    columns = [(f"col{at + 1}", _chosen([row[at] for row in rows])) for at in range(len(rows[0]))]
    return relation_of(project(scope.context, numbers.node, columns))


def _chosen(values: list[exp.Expression]) -> exp.Expression:
    """The value of a row, by its number; all are of the type that holds them all."""
    nothing = pa.schema([])
    kind: SqlType = VOID
    for value in values:
        wider = common_with_text(kind, typed(value, nothing).type)
        if wider is None:
            raise NotNative("VALUES of types that differ", found=value.sql("spark"), fix="")
        kind = wider
    if kind == VOID:
        return exp.Null()
    to = exp.DataType.build(str(kind), dialect="spark")
    to_arrow(kind)
    cases = [
        exp.If(
            this=exp.EQ(this=plan_column(ROW), expression=exp.Literal.number(number)),
            true=exp.Cast(this=exp.Paren(this=value.copy()), to=to.copy()),
        )
        for number, value in enumerate(values)
    ]
    return exp.Case(ifs=cases)


def _table_function(scope: QueryScope, call: exp.Anonymous) -> Relation:
    """The rows of a function of rows; `range` of few numbers is built here."""
    numbers = [_whole_number(argument) for argument in call.expressions]
    if call.name.lower() != "range" or not 1 <= len(numbers) <= 4 or None in numbers:  # noqa: PLR2004 - start, end, step, partitions
        raise NotNative(f"the table function {call.name}", found=call.sql("spark"), fix="")
    whole = [number for number in numbers if number is not None]
    start, end = (0, whole[0]) if len(whole) == 1 else (whole[0], whole[1])
    step = whole[2] if len(whole) > 2 else 1  # noqa: PLR2004 - the step is the third
    if step == 0 or len(range(start, end, step)) > scope.context.config.sql_local_rows_max:
        raise NotNative("a range of many rows", found=call.sql("spark"), fix="")
    rows = scope.context.local_rows
    if rows is None:
        raise NotNative("rows of no table are not built here", fix="")
    return relation_of(rows(pa.table({"id": pa.array(range(start, end, step), pa.int64())})))


def _whole_number(tree: exp.Expression) -> int | None:
    if isinstance(tree, exp.Neg):
        inner = _whole_number(tree.this)
        return None if inner is None else -inner
    if isinstance(tree, exp.Anonymous) and tree.name.startswith("__literal_"):
        return _whole_number(tree.expressions[0])
    if isinstance(tree, exp.Literal) and not tree.is_string and tree.name.isdigit():
        return int(tree.name)
    return None
