"""The datasets of an open workspace: from files, DataFrames, rows in memory and SQL.

`WorkspaceRuntime` loads this module with the first call that needs it: a process that only reads
journals or shuffles starts in half the time.
"""

from __future__ import annotations

import os
import string
import time
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from sqlglot import exp

from millrace.datasets.column_arguments import column_text, is_column, object_tree
from millrace.datasets.correlated_dataset import correlated_call
from millrace.datasets.dataset import Dataset
from millrace.datasets.dataset_base import plan_of, relation_in
from millrace.datasets.sql_views import SqlViews
from millrace.durations import ms
from millrace.errors import UserError
from millrace.plan.builders.build_context import UserFunctions
from millrace.plan.builders.build_scan import scan_of
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.nodes.node import Node
from millrace.plan.relation import Relation, relation_of
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.plan.statements.parameters import Arguments
from millrace.scan.input_files import Paths
from millrace.scan.source import Listing, open_source
from millrace.shuffle import arrow_inputs
from millrace.shuffle.database_inputs import keep_query
from millrace.spark.dataset_runner import DatasetRunner
from millrace.sql.expressions import as_user_error
from millrace.sql.parser import canonical
from millrace.sql.spark_text import is_command
from millrace.sql.sql_mode import SqlMode
from millrace.storage.storage_options import storage_options
from millrace.tables.delta.delta_source import delta_source
from millrace.tables.postgres.query_reading import DatabaseQuery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from millrace.spark.workspace_runtime import WorkspaceRuntime


class WorkspaceDatasets:
    """Makes the datasets of a workspace; one runner runs all of them."""

    def __init__(self, runtime: WorkspaceRuntime) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self.views = SqlViews(self._config, self, self._files_plan, self._rows_plan)
        self.runner = DatasetRunner(
            lambda: runtime.spark,
            lambda: runtime.started_spark,
            runtime.shuffle_workspace,
            lambda: runtime.shuffle_workspace() if runtime.home.is_there() else None,
            self._config,
            self.views,
        )

    def on_session(self, spark: SparkSession) -> None:
        """A session was started: it gets the functions that were registered before."""
        self.runner.registry.tell(spark)

    def sql(self, text: str, args: Arguments, named: Mapping[str, object]) -> Dataset:
        """The rows of a query; `named` has datasets, columns and values for `{name}` in it."""
        if not named:
            return self._statement(text, args)
        with SqlFormat(self.views) as names:
            return self._statement(names.vformat(text, (), named), args)

    def _statement(self, text: str, arguments: Arguments) -> Dataset:
        """The rows of a query, or the result of another statement, which runs now."""
        if not is_command(text):
            return self._of(self.views.statement(text, arguments))
        from millrace.spark.frames.sql_commands import SqlCommands  # noqa: PLC0415 - queries need no pyspark

        runner = self.runner
        commands = SqlCommands(
            lambda: runner.spark_session, runner.config, self.views, runner.frame
        )
        return self.read_arrow_rows(commands.run(text, arguments))

    def table(self, name: str) -> Dataset:
        """The dataset of a view, or of a table of Spark's catalog."""
        return self._of(self.views.table(name))

    def table_function(self, name: str, arguments: Sequence[Column]) -> Dataset:
        """The rows of a table-valued function of Spark."""
        trees = [object_tree(argument) for argument in arguments]
        try:
            with as_user_error(f"tvf.{name}()"):
                known = [resolve(tree, ()) for tree in trees]
        except UserError as reason:  # It names columns of a dataset around it.
            made = exp.Anonymous(this=name, expressions=trees)
            return correlated_call(self.runner, made, reason)
        given = ", ".join(map(canonical, known))
        text = f"SELECT * FROM {name}({given})"  # noqa: S608 - of a known name and columns
        return self._of(self.views.statement(text, None))

    def view(
        self,
        name: str,
        rows: Dataset | Paths | DataFrame,
        access: Mapping[str, str] | None = None,
    ) -> None:
        """Name rows, for SQL."""
        self.views.put(name, self._relation(rows, access))

    @property
    def analyzer(self) -> SparkAnalyzer:
        """Tells the columns of what Spark will compute."""
        return self.runner.analyzer

    @property
    def mode(self) -> SqlMode:
        """The mode of the session."""
        return self.runner.mode

    @property
    def udfs(self) -> UserFunctions:
        """The functions that users made with PySpark."""
        return self.runner.udfs

    def read_files(
        self,
        paths: Paths,
        format: str,  # noqa: A002 - Spark users know it by this name
        schema: pa.Schema | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        by_content: bool = False,
        access: Mapping[str, str] | None = None,
    ) -> Dataset:
        """Input files as a dataset; `access` are the user's `storage_options`."""
        if schema is not None and not isinstance(schema, pa.Schema):
            raise UserError(
                f"read_{format}: schema is not a schema of Arrow\n  found: {schema!r}\n"
                '  to fix: give pa.schema({"amount": pa.int64(), ...})'
            )
        runner, is_plain = self.runner, schema is None and not options and access is None
        if format == "parquet" and is_plain and (setting := runner.files_on_spark):
            return self.dataset(runner.scan_files(paths, setting))
        recent_ms = ms(self._config.recent_change)
        listing = Listing(now_ms=_now_ms(), recent_ms=recent_ms, by_content=by_content)
        source = open_source(
            paths,
            listing,
            format=format,
            schema=schema,
            options=options,
            access=storage_options(access),
        )
        return self.dataset(scan_of(source))

    def read_iceberg(self, table: object, catalog: object, snapshot: int | str | None) -> Dataset:
        """The rows of a snapshot of an Iceberg table."""
        from millrace.tables.iceberg.iceberg_catalogs import load_table  # noqa: PLC0415 - an extra
        from millrace.tables.iceberg.iceberg_snapshots import pin_snapshot  # noqa: PLC0415 - as above

        opened = load_table(table, catalog, call="read_iceberg()")
        pinned = pin_snapshot(opened, snapshot, call="read_iceberg()")
        if pinned.source is None:
            return self.read_arrow_rows(pinned.schema.empty_table())
        return self.dataset(scan_of(pinned.source))

    def read_delta(
        self, uri: str, version: int | None, access: Mapping[str, str] | None
    ) -> Dataset:
        """A version of a Delta table as a dataset."""
        if version is not None and (type(version) is not int or version < 0):
            raise UserError(
                f"read_delta({uri!r}): version is {version!r}\n"
                "  to fix: give the number of a version, as in version=3"
            )
        source = delta_source(uri, version, storage_options(access), self._config)
        if isinstance(source, pa.Schema):
            return self.read_arrow_rows(source.empty_table())
        return self.dataset(scan_of(source))

    def read_frame(
        self, frame: DataFrame, version: str | None, call: list[Any] | None = None
    ) -> Dataset:
        """A DataFrame as a dataset: its plan where it can be read, else its rows.

        `call` has the format and all arguments of the reader that made it, if one did.
        """
        from millrace.spark import connect_plans  # noqa: PLC0415 - reading files needs no Spark
        from millrace.spark.frames.connect_plan_identity import read_identity  # noqa: PLC0415 - as above
        from millrace.spark.frames.query_frames import frame_scan  # noqa: PLC0415 - as above

        if version is not None or not connect_plans.is_connect_frame(frame):
            recognise = None if call is None else read_identity(frame, call, self._config)
            return self.dataset(frame_scan(frame, version, self._config, recognise=recognise))
        catalog = SqlViews(self._config, self, self._files_plan, self._rows_plan)
        relation = connect_plans.connect_relation(
            frame,
            self._config,
            catalog,
            self._files_plan,
            self._rows_plan,
            lambda plan: self.dataset(plan).to_arrow(),
        )
        return self._of(relation)

    def dataset(self, plan: Node) -> Dataset:
        """A dataset of a plan, whose columns have the plan's names."""
        return self._of(relation_of(plan))

    def read_arrow_rows(self, data: object) -> Dataset:
        """Rows in memory as a dataset; they are saved in the workspace first."""
        rows = arrow_inputs.stream_of(data)
        self._runtime.home.make()
        path = arrow_inputs.keep(self._runtime.store, rows, sync=self._config.sync)
        return self.read_files(path, "arrow", by_content=True)

    def read_query(self, query: DatabaseQuery, version: str | None) -> Dataset:
        """Rows of a database as a dataset; they are saved in the workspace first."""
        self._runtime.home.make()
        paths = keep_query(self._runtime.store, query, version, self._config)
        return self.read_files(paths, "arrow", by_content=True)

    def _of(self, relation: Relation) -> Dataset:
        return Dataset(relation, self.runner)

    def _relation(
        self, rows: Dataset | Paths | DataFrame, access: Mapping[str, str] | None
    ) -> Relation:
        is_files = isinstance(rows, str | os.PathLike | list | tuple)
        if access is not None and not is_files:
            raise UserError(
                "storage_options= is for files\n  found: rows that are no files\n"
                "  to fix: leave it out"
            )
        if isinstance(rows, Dataset):
            return relation_in(rows)
        if isinstance(rows, str | os.PathLike | list | tuple):
            return relation_in(self.read_files(rows, "parquet", access=access))
        from millrace.spark.frames.query_frames import frame_scan  # noqa: PLC0415 - reading needs no Spark

        return relation_of(frame_scan(rows, None, self._config))

    def _files_plan(self, path: Paths, kind: str) -> Node:
        return plan_of(self.read_files(path, kind))

    def _rows_plan(self, rows: pa.Table) -> Node:
        return plan_of(self.read_arrow_rows(rows))


class SqlFormat(string.Formatter):
    """Writes datasets, columns and values into a text of SQL, as `spark.sql` does.

    A dataset gets a name of its own as long as the statement is read.
    """

    def __init__(self, views: SqlViews) -> None:
        self._views, self._names = views, dict[int, str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self._names.values():
            self._views.drop(name)

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, int | str]:
        """The text of a value: of `{orders}`, `{orders.amount}` or `{least}`."""
        value, first = super().get_field(field_name, args, kwargs)
        if isinstance(value, Dataset):
            name = self._names.setdefault(id(value), f"_millrace_{uuid.uuid4().hex}")
            self._views.put(name, relation_in(value))
            return name, first
        if is_column(value):
            return column_text(value), first
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'", first
        return value, first


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
