"""A runner for tests that only look at plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from millrace.config import Config
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import SparkQuery
from millrace.plan.relation import Relation
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.shuffle.reports import ParquetWritten, QueryReport, TableWritten
from millrace.spark.frames.rows_as_frames import dataset_column, spark_rows, subquery_column
from millrace.spark.versions.arrow_types import spark_types
from millrace.sql.sql_mode import DEFAULT, SqlMode
from millrace.tables.table_port import TableFile


class NoAnalyzer:
    """Knows nothing: each question needs Spark."""

    def schema_of(self, query: SparkQuery, inputs: Mapping[str, pa.Schema]) -> pa.Schema:
        raise AssertionError(f"Spark was asked for {query} over {', '.join(inputs)}")

    def functions(self) -> frozenset[str]:
        raise AssertionError("Spark was asked for functions")


class NoRunner:
    """Runs nothing: whoever asks is wrong."""

    __slots__ = ()

    @property
    def config(self) -> Config:
        return Config()

    @property
    def spark_session(self) -> Any:  # noqa: ANN401 - there is none
        raise AssertionError

    @property
    def analyzer(self) -> SparkAnalyzer | None:
        return None

    @property
    def mode(self) -> SqlMode:
        return DEFAULT

    @property
    def udfs(self) -> None:
        return None

    def name_view(self, name: str, relation: Relation, *, replace: bool) -> None:
        raise AssertionError((name, relation, replace))

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], QueryReport]:
        raise AssertionError(plan)

    def early_batches(self, plan: Node) -> Iterator[pa.RecordBatch]:
        rows, _ = self.batches(plan)
        return rows

    def rows_again(self, plan: Node) -> Callable[[], Iterator[pa.RecordBatch]]:
        raise AssertionError(plan)

    def explain(self, plan: Node, *, analyze: bool, html: bool) -> str:
        assert not analyze
        assert not html
        raise AssertionError(plan)

    def frame(self, plan: Node) -> Any:  # noqa: ANN401 - never made
        raise AssertionError(plan)

    def write_parquet(self, plan: Node, *_: object) -> ParquetWritten:
        raise AssertionError(plan)

    @property
    def keeps_partitions(self) -> bool:
        raise AssertionError

    def write_delta(self, plan: Node, *_: object) -> TableWritten:
        raise AssertionError(plan)

    def write_table_files(self, *_: object) -> list[TableFile]:
        raise AssertionError

    def show(self, *_: object, **__: object) -> None:
        raise AssertionError

    def observe(self, *_: object) -> None:
        raise AssertionError

    def spark_schema(self, schema: pa.Schema) -> Any:  # noqa: ANN401 - of pyspark
        return spark_types(schema)

    def spark_rows(self, rows: pa.Table) -> Any:  # noqa: ANN401 - of pyspark
        return spark_rows(rows)

    def eager_rows(self) -> int:
        return 0

    def scan_frame(self, *_: object) -> Node:
        raise AssertionError

    def spark_column(self, name: str, number: int) -> Any:  # noqa: ANN401 - of pyspark
        return dataset_column(name, number)

    @property
    def views(self) -> None:
        return None

    def subquery_column(self, dataset: object, number: int, use: str) -> Any:  # noqa: ANN401 - of pyspark
        return subquery_column(dataset, number, use)
