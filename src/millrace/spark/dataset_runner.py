"""Runs datasets of a workspace on its Spark, which is started when it is first needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millrace.config import Config
from millrace.datasets.sql_views import SqlViews
from millrace.names import path_text
from millrace.plan.builders.build_context import UserFunctions
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import SparkCode
from millrace.plan.nodes.user_code.user_function import FunctionCall, UserFunction
from millrace.plan.planner.stage_pictures import explain_fully, explain_html
from millrace.plan.relation import Relation
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.scan.input_files import Paths
from millrace.shuffle.reports import ParquetWritten, QueryReport, TableWritten
from millrace.sql.sql_mode import DEFAULT, SqlMode, in_mode
from millrace.sql.text_limits import limits_of
from millrace.storage.storage_options import StorageOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
    from pyspark.sql.types import StructType

    from millrace.datasets.dataset_base import DatasetBase
    from millrace.execute.shuffle_workspace import ShuffleWorkspace
    from millrace.spark.udfs.udf_registry import UdfRegistry
    from millrace.tables.delta.delta_target import DeltaTarget
    from millrace.tables.table_port import TableFile, TableTarget

_PARTITION_OVERWRITE: Final = "spark.sql.sources.partitionOverwriteMode"


class DatasetRunner:
    """Runs what a dataset describes.

    `spark` starts a session if there is none, `started_spark` gives the one that is there.
    `workspace` makes the workspace if there is none, `known_workspace` gives the one that is there.
    """

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        started_spark: Callable[[], SparkSession | None],
        workspace: Callable[[], ShuffleWorkspace],
        known_workspace: Callable[[], ShuffleWorkspace | None],
        config: Config,
        views: SqlViews,
    ) -> None:
        self._spark = spark
        self._started_spark = started_spark
        self._workspace = workspace
        self._known_workspace = known_workspace
        self.config = config
        self.views = views
        self._analyzer: SparkAnalyzer | None = None
        self._registry: UdfRegistry | None = None

    @property
    def spark_session(self) -> SparkSession:
        """The session of the workspace; one is started if there is none."""
        return self._spark()

    @property
    def mode(self) -> SqlMode:
        """The mode that the session asks for; Spark's defaults as long as none is started."""
        session = self._started_spark()
        if session is None:
            return DEFAULT
        from millrace.spark.session_settings import session_mode  # noqa: PLC0415 - as below

        return session_mode(session, self.config)

    @property
    def analyzer(self) -> SparkAnalyzer:
        """Tells the columns of what Spark will compute; Spark starts with the first question."""
        if self._analyzer is None:
            from millrace.spark.spark_analysis import SparkAnalysis  # noqa: PLC0415 - as below

            self._analyzer = SparkAnalysis(self._spark, self.config)
        return self._analyzer

    @property
    def udfs(self) -> UserFunctions:
        """The functions that users made with PySpark, which is loaded with the first of them."""
        return self

    @property
    def registry(self) -> UdfRegistry:
        """The functions that SQL calls by name."""
        if self._registry is None:
            from millrace.spark.udfs.udf_registry import UdfRegistry  # noqa: PLC0415 - as below

            self._registry = UdfRegistry(self._started_spark)
        return self._registry

    def registered(self, name: str) -> UserFunction | None:
        """The function that SQL calls by this name."""
        return None if self._registry is None else self._registry.registered(name)

    def of_message(self, message: object) -> UserFunction:
        """The function of a column of Spark Connect."""
        return self.registry.of_message(message)

    def of_rows(self, function: object, schema: object, method: str) -> UserFunction:
        """The function of a method that makes rows of rows."""
        from millrace.spark.udfs.pyspark_functions import rows_function  # noqa: PLC0415 - as below

        return rows_function(function, schema, method)

    def on_spark(
        self, function: UserFunction, keys: Sequence[Sequence[str]], *arguments: object
    ) -> SparkCode:
        """The call of a function that makes rows of rows, over DataFrames."""
        from millrace.spark.udfs.pyspark_functions import call_on_spark  # noqa: PLC0415 - as below

        return call_on_spark(function, keys, arguments)

    @property
    def why_on_spark(self) -> str | None:
        """Why Spark has to call all functions itself; None if tasks call them."""
        from millrace.spark.versions.spark_versions import CALLS_IN_TASKS, has, shown  # noqa: PLC0415

        if has(CALLS_IN_TASKS):
            return None
        return f"tasks call functions since Spark {shown(CALLS_IN_TASKS)}"

    def calls_on_spark(
        self, calls: Sequence[FunctionCall], *, passed: Sequence[str], keys: Sequence[str] | None
    ) -> SparkCode:
        """Columns that are passed on and results of calls, for each row or for each group."""
        from millrace.spark.udfs.calls_on_spark import calls_on_spark  # noqa: PLC0415 - as below

        return calls_on_spark(calls, passed=passed, keys=keys)

    def name_view(self, name: str, relation: Relation, *, replace: bool) -> None:
        """Give rows a name for SQL; without `replace`, one that is free."""
        self.views.put(name, relation, replace=replace)

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], QueryReport]:
        """The rows of a plan, and what its stages did."""
        from millrace.spark.query_start import run_query  # noqa: PLC0415 - describing needs no Spark

        with limits_of(self.config):
            run = run_query(self._spark(), self._workspace(), plan)
        return run.batches(), run.report

    def early_batches(self, plan: Node) -> Iterator[pa.RecordBatch]:
        """The rows of a plan, the first ones while its query still runs."""
        from millrace.spark.query_start import early_rows  # noqa: PLC0415 - as above

        with limits_of(self.config):
            return early_rows(self._spark(), self._workspace(), plan)

    def rows_again(self, plan: Node) -> Callable[[], Iterator[pa.RecordBatch]]:
        """The rows of one run of a plan, as often as they are asked for."""
        from millrace.spark.query_start import run_query  # noqa: PLC0415 - as above

        with limits_of(self.config):
            return run_query(self._spark(), self._workspace(), plan).batches

    def explain(self, plan: Node, *, analyze: bool, html: bool) -> str:
        """The stages of a plan, as text or as a picture.

        With a session at hand it says what of them would be reused. With `analyze` the query runs.
        """
        from millrace.spark.query_start import analyze_query, explain_query  # noqa: PLC0415 - as above

        show = explain_html if html else explain_fully
        with limits_of(self.config):
            if analyze:
                return analyze_query(self._spark(), self._workspace(), plan, show)
            session = self._started_spark()  # Not started for this.
            workspace = None if session is None else self._known_workspace()
            return explain_query(session, workspace, plan, self.config, show)

    def frame(self, plan: Node) -> DataFrame:
        """The rows of a plan as a DataFrame with a partition for each map output of the answer."""
        from millrace.spark.frames.rows_as_frames import outputs_to_frame  # noqa: PLC0415
        from millrace.spark.query_start import run_query  # noqa: PLC0415 - as above
        from millrace.spark.versions.arrow_types import spark_types  # noqa: PLC0415

        with limits_of(self.config):
            spark, workspace = self._spark(), self._workspace()
            spark_types(plan.schema)
            answer = run_query(spark, workspace, plan).answer
            return outputs_to_frame(spark, answer, workspace.folders, self.config)

    def write_parquet(
        self,
        plan: Node,
        path: str | os.PathLike[str],
        mode: str,
        compression: str,
        options: StorageOptions,
        partition_by: tuple[str, ...],
    ) -> ParquetWritten:
        """Write the rows of a plan as Parquet files; a wrong target is refused before it runs."""
        from millrace.execute.results import parquet_results  # noqa: PLC0415 - as above
        from millrace.execute.results.written_stage import WrittenStage  # noqa: PLC0415 - as above
        from millrace.spark.query_start import run_query  # noqa: PLC0415 - as above

        workspace = self._workspace()
        with limits_of(self.config):
            spark = self._spark()
            parquet_results.check_parquet(plan.schema, compression, partition_by)
            where = path_text(path, "write_parquet")
            with parquet_results.draft_at(where, mode, options, workspace) as draft:
                target = parquet_results.target_in(draft, plan.schema, compression, partition_by)
                run = run_query(spark, workspace, plan, writes=WrittenStage(target))
                return run.with_answer(
                    partial(parquet_results.publish_files, target, draft, self.config)
                )

    @property
    def keeps_partitions(self) -> bool:
        """Whether an overwrite leaves partitions that get no rows, as a setting can ask for."""
        from millrace.spark.spark_presence import setting  # noqa: PLC0415 - as above

        asked = setting(self._spark(), self.config, _PARTITION_OVERWRITE, "static")
        return asked.lower() != "static"

    def write_delta(
        self, plan: Node, target: DeltaTarget, mode: str, replace_where: str | None
    ) -> TableWritten:
        """Write the rows of a plan into a Delta table; wrong rows are refused before they run."""
        from millrace.execute.results.delta_results import DeltaWrite  # noqa: PLC0415 - as above
        from millrace.spark.query_start import run_query  # noqa: PLC0415 - as above
        from millrace.spark.session_settings import time_zone  # noqa: PLC0415 - as above
        from millrace.spark.spark_tasks import SparkTaskRunner  # noqa: PLC0415 - as above

        write = DeltaWrite(target=target, mode=mode, replace_where=replace_where)
        write.check(plan.schema, self.config)
        workspace = self._workspace()
        with limits_of(self.config):
            spark = self._spark()
            runner = SparkTaskRunner(spark, self.config)
            with in_mode(self.mode):
                chosen = write.choice(self.config, zone=time_zone(spark, self.config))
            return run_query(spark, workspace, plan).with_answer(
                lambda answer: write.carry_out(runner, workspace, answer, chosen)
            )

    def write_table_files(self, plan: Node, target: TableTarget, who: str) -> list[TableFile]:
        """Write the rows of a plan as files of a table, which no reader sees yet."""
        from millrace.execute.results import table_results  # noqa: PLC0415 - as above
        from millrace.spark.query_start import run_query  # noqa: PLC0415 - as above
        from millrace.spark.spark_tasks import SparkTaskRunner  # noqa: PLC0415 - as above

        workspace = self._workspace()
        with limits_of(self.config):
            spark = self._spark()
            runner = SparkTaskRunner(spark, self.config)
            return run_query(spark, workspace, plan).with_answer(
                lambda answer: table_results.write_files(runner, workspace, answer, target, who)
            )

    def table_frame(self, rows: pa.Table) -> DataFrame:
        """Rows of this process as a DataFrame."""
        from millrace.spark.frames.rows_as_frames import of_table  # noqa: PLC0415 - as above

        return of_table(self._spark(), rows)

    def show(self, rows: pa.Table, count: int, *, truncate: bool | int, vertical: bool) -> None:
        """Print rows as Spark does."""
        from millrace.spark.frames.rows_as_frames import of_table  # noqa: PLC0415 - as above
        from millrace.spark.spark_presence import call_spark  # noqa: PLC0415 - as above

        spark = self._spark()
        call_spark(
            spark, self.config, lambda: of_table(spark, rows).show(count, truncate, vertical)
        )

    def observe(self, observation: Observation | str, metrics: pa.Table) -> None:
        """Let Spark report a row of metrics, to its `Observation` or under a name."""
        from millrace.spark.frames.rows_as_frames import report_metrics  # noqa: PLC0415 - as above
        from millrace.spark.spark_presence import call_spark  # noqa: PLC0415 - as above

        spark = self._spark()
        call_spark(spark, self.config, lambda: report_metrics(spark, observation, metrics))

    def spark_schema(self, schema: pa.Schema) -> StructType:
        """Columns with Spark's types."""
        from millrace.spark.versions.arrow_types import spark_types  # noqa: PLC0415 - as above

        return spark_types(schema)

    def spark_rows(self, rows: pa.Table) -> list[Row]:
        """Rows as Spark's `collect` gives them."""
        from millrace.spark.frames.rows_as_frames import spark_rows  # noqa: PLC0415 - as above

        return spark_rows(rows)

    def eager_rows(self) -> int:
        """How many rows a notebook shows by itself, as Spark's eagerEval says; 0 for none."""
        from millrace.spark.spark_presence import setting  # noqa: PLC0415 - as above

        session = self._started_spark()
        if session is None:
            return 0
        enabled = setting(session, self.config, "spark.sql.repl.eagerEval.enabled", "false")
        most = setting(session, self.config, "spark.sql.repl.eagerEval.maxNumRows", "20")
        return int(most) if enabled.lower() == "true" else 0

    @property
    def files_on_spark(self) -> str | None:
        """The setting because of which Spark itself has to read files."""
        session = self._started_spark()
        if session is None:
            return None
        from millrace.spark.session_settings import files_on_spark  # noqa: PLC0415 - as above

        return files_on_spark(session, self.config)

    def scan_files(self, paths: Paths, setting: str) -> Node:
        """Parquet files that Spark reads, because a setting changes what they hold."""
        listed = [paths] if isinstance(paths, str | os.PathLike) else paths
        texts = [path_text(path, "read_parquet") for path in listed]
        whole = [text if ":/" in text else os.path.abspath(text) for text in texts]
        reason = f"the session has {setting}, and Spark reads files otherwise then"
        return self.scan_frame(self._spark().read.parquet(*whole), reason)

    def scan_frame(self, frame: DataFrame, reason: str = "") -> Node:
        """A Spark DataFrame as a plan."""
        from millrace.spark.frames.query_frames import frame_scan  # noqa: PLC0415 - as above

        return frame_scan(frame, None, self.config, reason)

    def spark_column(self, name: str, number: int) -> Column:
        """A column that is named through the dataset of this number."""
        from millrace.spark.frames.rows_as_frames import dataset_column  # noqa: PLC0415 - as above

        return dataset_column(name, number)

    def subquery_column(self, dataset: DatasetBase, number: int, use: str) -> Column:
        """A dataset as a column: its one value, or whether it has a row."""
        from millrace.spark.frames.rows_as_frames import subquery_column  # noqa: PLC0415 - as above

        return subquery_column(dataset, number, use)
