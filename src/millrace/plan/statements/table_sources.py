"""The rows of a table in FROM: a table of WITH, a view, a query in brackets, VALUES, a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from sqlglot import exp

from millrace.plan.builders.build_rows import limit
from millrace.plan.builders.name_resolution import plan_column
from millrace.plan.builders.operators import project, reason_of, spark_name, typed
from millrace.plan.relation import Relation, relation_of
from millrace.plan.statements.order_clauses import row_count
from millrace.plan.statements.pivots import with_pivot
from millrace.plan.statements.query_scope import QueryScope, aliased
from millrace.sql.parser import canonical
from millrace.sql.typed_sql import ExpressionRefused, NotNative
from millrace.sql.types import VOID, SqlType, common_with_text, to_arrow

ROW: str = "__row"


def table_source(scope: QueryScope, tree: exp.Expression) -> Relation:
    """The rows of a table in FROM, under its alias."""
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
    if tree.args.get("sample") is not None:
        relation = _sampled(scope, relation, tree.args["sample"])
    relation = aliased(relation, tree.args.get("alias"))
    return with_pivots(scope, relation, tree.args.get("pivots") or ())


def with_pivots(scope: QueryScope, relation: Relation, pivots: Sequence[exp.Pivot]) -> Relation:
    """Rows of FROM after its pivots; one that only Spark makes runs there alone."""
    for pivot in pivots:
        bare = pivot.copy()
        bare.set("alias", None)
        text = canonical(bare).strip()
        relation = rows_or_on_spark(
            scope,
            partial(with_pivot, scope.context, relation, pivot),
            relation,
            text,
        )
        relation = aliased(relation, pivot.args.get("alias"))
    return relation


def _sampled(scope: QueryScope, relation: Relation, sample: exp.TableSample) -> Relation:
    """Some of the rows: the first ones, all or none; Spark draws others by chance."""

    def native() -> Relation:
        if sample.args.get("size") is not None:
            return limit(relation, row_count(sample.args["size"]))
        share = sample.args.get("percent")
        if isinstance(share, exp.Literal) and share.name in ("0", "100"):
            return relation if share.name == "100" else limit(relation, 0)
        raise NotNative("rows are drawn by chance", found=sample.sql("spark"), fix="")

    unnamed = relation_of(relation.output()) if relation.has_unique_labels else relation
    return rows_or_on_spark(scope, native, unnamed, canonical(sample).strip())


def rows_or_on_spark(
    scope: QueryScope, native: Callable[[], Relation], relation: Relation, clause: str
) -> Relation:
    """Rows of FROM with a clause behind them; where it is not native, Spark runs it alone."""
    try:
        return native()
    except NotNative as refused:
        if scope.context.on_spark is None or not relation.has_unique_labels:
            raise
        qualifiers = {a.qualifier for a in relation.visible}
        table = qualifiers.pop()[-1:] if len(qualifiers) == 1 else ()
        alias = f" AS {spark_name(table[0])}" if table else ""
        query = f"SELECT * FROM input_0{alias} {clause}"
        inputs = [("input_0", relation.output())]
        return relation_of(scope.context.on_spark(inputs, query, reason_of(refused)), table)


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
        raise NotNative("rows of no table are not built here", fix="name a table")
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
        raise NotNative("rows of no table are not built here", fix="name a table")
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
