"""Plans over tables in memory, run as one task runs them, with no Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from tests.unit.runner_kit import NoRunner

from millrace.datasets.dataset import Dataset
from millrace.engine.duckdb_engine import Engine
from millrace.engine.query_writer import query
from millrace.engine.task_inputs import TaskInput
from millrace.plan.nodes.node import Leaf, Node
from millrace.plan.relation import relation_of
from millrace.shuffle.reports import QueryReport

BATCH_ROWS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Leaf):
    """Rows of a table."""

    table: pa.Table

    def make_schema(self) -> pa.Schema:
        return self.table.schema

    def describe(self) -> str:
        return "rows"


@dataclass(frozen=True, slots=True)
class OneTask(NoRunner):
    """Runs a plan over tables."""

    zone: str = "UTC"
    memory_bytes_max: int = 1 << 28
    spill_parent: str | None = None

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], QueryReport]:
        return self._run(plan), QueryReport()

    def explain(self, plan: Node, *, analyze: bool, html: bool) -> str:
        assert not analyze
        assert not html
        return query(plan)

    def _run(self, plan: Node) -> Iterator[pa.RecordBatch]:
        named = {
            f"input_{number}": TaskInput(partial(stream, table))
            for number, table in enumerate(tables(plan))
        }
        with tempfile.TemporaryDirectory(dir=self.spill_parent) as folder:
            engine = Engine(
                memory_bytes_max=self.memory_bytes_max, spill_folder=folder, time_zone=self.zone
            )
            yield from engine.run(query(plan), named, plan.schema)


def tables(node: Node) -> list[pa.Table]:
    if isinstance(node, Rows):
        return [node.table]
    return [table for child in node.children for table in tables(child)]


def stream(table: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(
        table.schema, table.to_batches(max_chunksize=BATCH_ROWS)
    )


def rows(table: pa.Table, runner: OneTask | None = None) -> Dataset:
    """A dataset of a table."""
    return Dataset(relation_of(Rows(table)), runner or OneTask())


def of(**columns: object) -> Dataset:
    """A dataset of columns."""
    return rows(pa.table(columns))
