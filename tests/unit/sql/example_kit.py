"""Spark's examples answered without Spark: statements planned and run by one task of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from sqlglot import exp

from millrace.engine.duckdb_engine import Engine
from millrace.engine.query_writer import query
from millrace.engine.run_values import RunMoment, values_for
from millrace.engine.task_inputs import TaskInput
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_select import select
from millrace.plan.builders.operators import named
from millrace.plan.nodes.node import Leaf, Node
from millrace.plan.planner.column_pruning import prune
from millrace.plan.planner.filter_pushdown import push_filters
from millrace.plan.relation import relation_of
from millrace.plan.statements.statement import statement_relation
from millrace.sql.parser import read


@dataclass(frozen=True, slots=True, eq=False)
class GivenRows(Leaf):
    """Rows that are there."""

    rows: pa.Table

    def make_schema(self) -> pa.Schema:
        return self.rows.schema

    def describe(self) -> str:
        return "given rows"


CONTEXT = BuildContext(local_rows=GivenRows)


def native_answer(sql: str, folder: Path) -> pa.Table:
    """The rows of an example; raises `NotNative` for what is left to Spark."""
    return run_plan(statement_relation(CONTEXT, read(sql)).output(), folder)


def selected(
    texts: Sequence[str], rows: pa.Table, folder: Path, time_zone: str = "UTC"
) -> pa.Table:
    """A select list over a table: the columns c0, c1, ..."""
    trees: list[exp.Expression] = [named(read(text), f"c{n}") for n, text in enumerate(texts)]
    return run_plan(
        select(CONTEXT, relation_of(GivenRows(rows)), trees).output(), folder, time_zone
    )


def run_plan(node: Node, folder: Path, time_zone: str = "UTC") -> pa.Table:
    """The rows of a plan whose leaves are given."""
    plan = prune(push_filters(node))
    engine = Engine(memory_bytes_max=1 << 30, spill_folder=str(folder), time_zone=time_zone)
    inputs = {
        f"input_{number}": TaskInput(leaf.rows.to_reader)
        for number, leaf in enumerate(_leaves(plan))
    }
    values = values_for(query(plan), RunMoment(micros=0), time_zone)
    rows = engine.run(query(plan), inputs, node.schema, values)
    return pa.Table.from_batches(rows, node.schema)


def _leaves(node: Node) -> list[GivenRows]:
    if isinstance(node, GivenRows):
        return [node]
    return [leaf for child in node.children for leaf in _leaves(child)]
