"""Spark's examples answered without Spark: a query over typed values, planned and run in DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from sqlglot import exp

from millrace.engine.duckdb_engine import Engine
from millrace.engine.query_writer import query
from millrace.engine.task_inputs import TaskInput
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import select
from millrace.plan.builders.operators import named
from millrace.plan.nodes.node import Leaf, Node
from millrace.plan.nodes.project import Project
from millrace.plan.relation import relation_of
from millrace.sql.expression_typing import ExpressionTyper
from millrace.sql.expressions import expression_of
from millrace.sql.functions.casts import cast
from millrace.sql.name_scope import NameScope
from millrace.sql.parser import read
from millrace.sql.typed_sql import NotNative, TypedSql
from millrace.sql.types import common

ONE_ROW: Final = pa.table({"one row": pa.array([1], pa.int32())})


@dataclass(frozen=True, slots=True, eq=False)
class GivenRows(Leaf):
    """Rows that are there."""

    rows: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def describe(self) -> str:
        return "given rows"


def native_answer(sql: str, folder: Path) -> pa.Table:
    """The rows of an example; raises `NotNative` for what is left to Spark."""
    tree = read(sql)
    if not isinstance(tree, exp.Select):
        raise NotNative("only SELECT is tried", fix="run it in Spark")
    others = [
        key
        for key, value in tree.args.items()
        if value and key not in ("expressions", "from_", "from", "kind")
    ]
    if others:
        raise NotNative(f"a SELECT with {', '.join(others)} is not tried", fix="run it in Spark")
    source = tree.args.get("from_") or tree.args.get("from")
    rows = ONE_ROW if source is None else _values(source.this, folder)
    return selected(tree.expressions, rows, folder)


def run_plan(plan: Node, rows: pa.Table, folder: Path, time_zone: str = "UTC") -> pa.Table:
    """The rows of a plan over one table."""
    engine = Engine(memory_bytes_max=1 << 30, spill_folder=str(folder), time_zone=time_zone)
    inputs = {"input_0": TaskInput(rows.to_reader)}
    return pa.Table.from_batches(engine.run(query(plan), inputs, plan.schema), plan.schema)


def selected(
    texts: Sequence[str | exp.Expression], rows: pa.Table, folder: Path, time_zone: str = "UTC"
) -> pa.Table:
    """A select list over a table: the columns c0, c1, ..."""
    trees = [
        tree if isinstance(tree, exp.Star) else named(_body(tree), f"c{n}")
        for n, tree in enumerate(read(t) if isinstance(t, str) else t for t in texts)
    ]
    relation = select(BuildContext(), relation_of(GivenRows(rows)), trees)
    return run_plan(relation.output(), rows, folder, time_zone)


def _body(tree: exp.Expression) -> exp.Expression:
    return tree.this if isinstance(tree, exp.Alias) else tree


def _values(source: exp.Expression, folder: Path) -> pa.Table:
    """The table of `VALUES (...), (...) AS tab(col, ...)`."""
    if not isinstance(source, exp.Values):
        raise NotNative("only VALUES are tried as a source", fix="run it in Spark")
    alias = source.args.get("alias")
    typer = ExpressionTyper(NameScope({}, cast_first=frozenset()))
    rows = [
        typer.typed_all(row.expressions if isinstance(row, exp.Tuple) else [row])
        for row in source.expressions
    ]
    names = [column.name for column in alias.columns] if alias is not None else []
    names = names or [f"col{n + 1}" for n in range(len(rows[0]))]
    columns = [_same_type(list(column)) for column in zip(*rows, strict=True)]
    tables = []
    for number in range(len(rows)):
        row = [(name, column[number]) for name, column in zip(names, columns, strict=True)]
        plan = Project(
            GivenRows(ONE_ROW),
            tuple((name, expression_of(exp.null(), term)) for name, term in row),
        )
        tables.append(run_plan(plan, ONE_ROW, folder))
    return pa.concat_tables(tables)


def _same_type(terms: list[TypedSql]) -> list[TypedSql]:
    kind = terms[0].type
    for term in terms:
        wider = common(kind, term.type)
        if wider is None:
            raise NotNative("values of one column have no common type", fix="run it in Spark")
        kind = wider
    return [term if term.type == kind else cast(term, kind) for term in terms]
