"""The results of a dataset: rows, DataFrames, files and reports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.plan.nodes.node import Node
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.shuffle.reports import ParquetWritten, QueryReport
from millrace.text import HtmlText, PlainText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PlanRunner(Protocol):
    """Runs the plans of datasets; each workspace has one."""

    @property
    def config(self) -> Config:
        """The limits of its workspace."""

    @property
    def analyzer(self) -> SparkAnalyzer:
        """Tells the columns of what Spark will compute."""

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], QueryReport]:
        """The rows of a plan, and what its stages did."""

    def explain(self, plan: Node, *, analyze: bool, html: bool) -> str:
        """The stages of a plan, as text or as a picture; with `analyze` it runs."""

    def frame(self, plan: Node) -> DataFrame:
        """The rows of a plan as a Spark DataFrame."""

    def write_parquet(
        self, plan: Node, path: str | os.PathLike[str], mode: str, compression: str
    ) -> ParquetWritten:
        """Write the rows of a plan as Parquet files."""

    def show(self, rows: pa.Table, count: int, truncate: int) -> None:
        """Print rows as Spark does."""


@dataclass(frozen=True, slots=True, repr=False)
class DatasetResults:
    """A plan, and the calls that run it."""

    _plan: Node
    _runner: PlanRunner

    def __repr__(self) -> str:
        return f"Dataset[{', '.join(f'{field.name}: {field.type}' for field in self.schema)}]"

    @property
    def schema(self) -> pa.Schema:
        """Columns and types, known without running anything.

        Example:
            >>> orders.schema.field("amount").type
            DataType(int64)
        """
        return self._plan.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns.

        Example:
            >>> orders.columns
            ['cust_id', 'amount']
        """
        return list(self.schema.names)

    def collect(self) -> pa.Table:
        """All rows as a table.

        Example:
            >>> orders.collect()["amount"].to_pylist()
            [10, 20, 30]
        """
        rows, _ = self._runner.batches(self._plan)
        return pa.Table.from_batches(rows, self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as a stream of batches.

        Example:
            >>> sum(batch.num_rows for batch in orders.to_batches())
            3
        """
        rows, _ = self._runner.batches(self._plan)
        return rows

    def to_spark(self) -> DataFrame:
        """The rows as a Spark DataFrame, in their order.

        The query runs now. Spark's tasks read its saved rows when Spark runs the DataFrame.

        Example:
            >>> frame = orders.filter("amount > 10").to_spark()
            >>> frame.columns, frame.count()
            (['cust_id', 'amount'], 2)
        """
        return self._runner.frame(self._plan)

    def write_parquet(
        self, path: str | os.PathLike[str], mode: str = "error", *, compression: str = "snappy"
    ) -> ParquetWritten:
        """Write the rows as a folder of Parquet files, all of it or nothing.

        Args:
            path: the folder, on a disk that all hosts share.
            mode: "error" if there is something already, or "overwrite".
            compression: "none", "snappy", "gzip", "lz4" or "zstd".

        Example:
            >>> written = orders.write_parquet("copy", mode="overwrite", compression="zstd")
            >>> ws.read_parquet("copy").count() == written.rows
            True
        """
        return self._runner.write_parquet(self._plan, path, mode, compression)

    def run(self) -> QueryReport:
        """Save the rows in the workspace, and report what ran, what was reused and why.

        Example:
            >>> counted = orders.group_by("cust_id").agg(n="count(*)")
            >>> first = counted.run()
            >>> counted.run().ran  # nothing runs a second time
            0
        """
        _, report = self._runner.batches(self._plan)
        return report

    def explain(self, *, analyze: bool = False) -> PlainText:
        """The stages of the query and their exchanges, as text.

        It says what each stage reads, how much of that, and which tasks would be reused. With
        `analyze` the query runs, and each stage has its tasks, rows, bytes and seconds.

        Example:
            >>> orders.group_by("cust_id").agg(n="count(*)").explain(analyze=True)
            stage 0...
        """
        return PlainText(self._runner.explain(self._plan, analyze=analyze, html=False))

    def explain_html(self, *, analyze: bool = False) -> HtmlText:
        """The stages of the query as a picture, which a notebook shows.

        Example:
            >>> picture = orders.group_by("cust_id").agg(n="count(*)").explain_html()
            >>> "stage 0" in picture
            True
        """
        return HtmlText(self._runner.explain(self._plan, analyze=analyze, html=True))


def plan_of(dataset: DatasetResults) -> Node:
    """The plan of a dataset, for the modules that run it."""
    return dataset._plan  # noqa: SLF001 - for the package, not for users
