"""Runs plans in this process, in one task of the engine, over tables in memory or Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.engine.function_install import install_functions
from millrace.engine.query_writer import query
from millrace.plan.builders.build_context import BuildContext
from millrace.plan.nodes.node import Leaf, Node
from millrace.plan.planner.column_pruning import prune
from millrace.plan.planner.filter_pushdown import push_filters
from millrace.plan.relation import Relation, relation_of
from millrace.plan.statements.statement import statement_relation
from millrace.sql.parser import read


@dataclass(frozen=True, slots=True, eq=False)
class LocalRows(Leaf):
    """Rows of a table or a file."""

    rows: pa.Table | str
    columns: pa.Schema

    def make_schema(self) -> pa.Schema:
        return self.columns

    def describe(self) -> str:
        return "local rows"


def of_table(table: pa.Table) -> Node:
    return LocalRows(table, table.schema)


def of_parquet(path: Path) -> Node:
    return LocalRows(str(path), pq.read_schema(path).remove_metadata())


class LocalCatalog:
    """Tables by their names in lower case."""

    def __init__(self, tables: Mapping[str, Node]) -> None:
        self._tables = tables

    def relation(self, name: tuple[str, ...]) -> Relation | None:
        node = self._tables.get(name[-1].lower())
        return None if node is None else relation_of(node)


def context_of(tables: Mapping[str, Node]) -> BuildContext:
    return BuildContext(catalog=LocalCatalog(tables), local_rows=of_table)


def sql_relation(tables: Mapping[str, Node], text: str) -> Relation:
    return statement_relation(context_of(tables), read(text))


def run(node: Node) -> pa.Table:
    """The rows of a plan, as one task has them."""
    return run_operators(prune(push_filters(node))).cast(node.schema)


def run_operators(plan: Node) -> pa.Table:
    """The rows of operators that are planned already."""
    connection = duckdb.connect()
    install_functions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    for number, leaf in enumerate(_leaves(plan)):
        assert isinstance(leaf, LocalRows)
        if isinstance(leaf.rows, str):
            connection.execute(f"CREATE VIEW input_{number} AS FROM read_parquet('{leaf.rows}')")
        else:
            connection.register(f"input_{number}", leaf.rows)
    return connection.sql(query(plan)).to_arrow_table().cast(plan.schema)


def rows_of(tables: Mapping[str, Node], text: str) -> list[tuple[object, ...]]:
    """The rows of a SQL statement, as tuples."""
    relation = sql_relation(tables, text)
    table = run(relation.output())
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _leaves(node: Node) -> list[Node]:
    if not node.children:
        return [node]
    return [leaf for child in node.children for leaf in _leaves(child)]
