"""What every method of a dataset builds on: its relation, its runner, the surroundings of a call.

Invariant: each dataset has a number of its own, and its columns can be named through that number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

import pyarrow as pa
from sqlglot import exp

from millrace.config import Config
from millrace.datasets.sql_views import SqlViews
from millrace.errors import UserError
from millrace.plan.builders.build_context import BuildContext, UserFunctions
from millrace.plan.builders.build_on_spark import on_spark
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.on_spark import SparkCall
from millrace.plan.plan_modes import modes_in
from millrace.plan.planner.plan_depth import check_plan_size
from millrace.plan.relation import Relation, relation_of
from millrace.plan.spark_analyzer import SparkAnalyzer
from millrace.shuffle.reports import ParquetWritten, QueryReport, TableWritten
from millrace.sql.expressions import as_user_error
from millrace.sql.name_checks import check_distinguishable
from millrace.sql.sql_mode import SqlMode, in_mode
from millrace.sql.text_limits import limits_of
from millrace.sql.typed_sql import NotNative
from millrace.storage.storage_options import StorageOptions
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.table_port import TableFile, TableTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
    from pyspark.sql.types import StructType

_numbers: Final = count(1)
_TABLE: Final = "__dataset_"
"""What names of datasets begin with, where they are tables of a query."""


class PlanRunner(Protocol):
    """Runs the plans of datasets; each workspace has one."""

    @property
    def config(self) -> Config:
        """The limits of its workspace."""

    @property
    def spark_session(self) -> SparkSession:
        """The session of the workspace; one is started if there is none."""

    @property
    def analyzer(self) -> SparkAnalyzer | None:
        """Tells the columns of what Spark will compute; None where there is no Spark."""

    @property
    def mode(self) -> SqlMode:
        """The mode that the session asks for; Spark's defaults where none is started."""

    @property
    def udfs(self) -> UserFunctions | None:
        """The functions that users made with PySpark; None where there is no Spark."""

    def name_view(self, name: str, relation: Relation, *, replace: bool) -> None:
        """Give rows a name for SQL; without `replace`, one that is free."""

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], QueryReport]:
        """The rows of a plan, and what its stages did."""

    def early_batches(self, plan: Node) -> Iterator[pa.RecordBatch]:
        """The rows of a plan, the first ones while its query still runs."""

    def rows_again(self, plan: Node) -> Callable[[], Iterator[pa.RecordBatch]]:
        """The rows of one run of a plan, as often as they are asked for."""

    def explain(self, plan: Node, *, analyze: bool, html: bool) -> str:
        """The stages of a plan, as text or as a picture; with `analyze` it runs."""

    def frame(self, plan: Node) -> DataFrame:
        """The rows of a plan as a Spark DataFrame."""

    def write_parquet(
        self,
        plan: Node,
        path: str | os.PathLike[str],
        mode: str,
        compression: str,
        options: StorageOptions,
        partition_by: tuple[str, ...],
    ) -> ParquetWritten:
        """Write the rows of a plan as Parquet files."""

    @property
    def keeps_partitions(self) -> bool:
        """Whether an overwrite is to leave partitions that get no rows; a setting asks for it."""

    def write_delta(
        self, plan: Node, target: DeltaTarget, mode: str, replace_where: str | None
    ) -> TableWritten:
        """Write the rows of a plan into a Delta table."""

    def write_table_files(self, plan: Node, target: TableTarget, who: str) -> list[TableFile]:
        """Write the rows of a plan as files of a table, which no reader sees yet."""

    def show(self, rows: pa.Table, count: int, *, truncate: bool | int, vertical: bool) -> None:
        """Print rows as Spark does."""

    def observe(self, observation: Observation | str, metrics: pa.Table) -> None:
        """Let Spark report a row of metrics, to its `Observation` or under a name."""

    def spark_schema(self, schema: pa.Schema) -> StructType:
        """Columns with Spark's types."""

    def spark_rows(self, rows: pa.Table) -> list[Row]:
        """Rows as Spark's `collect` gives them."""

    def eager_rows(self) -> int:
        """How many rows a notebook shows by itself, as Spark's eagerEval says; 0 for none."""

    def scan_frame(self, frame: DataFrame) -> Node:
        """A Spark DataFrame as a plan."""

    @property
    def views(self) -> SqlViews | None:
        """The tables that subqueries in texts name; None where there are none."""

    def spark_column(self, name: str, number: int) -> Column:
        """A column that is named through the dataset of this number."""

    def subquery_column(self, dataset: DatasetBase, number: int, use: str) -> Column:
        """The dataset as a column: its one value, or whether it has a row."""


D = TypeVar("D", bound="DatasetBase")
_by_number: Final[WeakValueDictionary[int, DatasetBase]] = WeakValueDictionary()
"""Datasets that stand in columns and queries of others, as long as those are there."""


def next_number() -> int:
    """The number of a new dataset."""
    return -next(_numbers)  # Numbers of Spark Connect's plans are not below 0.


@dataclass(frozen=True, slots=True, repr=False, eq=False, weakref_slot=True)
class DatasetBase:
    """A relation, and the runner of its plan."""

    _relation: Relation
    _runner: PlanRunner
    _number: int = field(default_factory=next_number)

    def __post_init__(self) -> None:
        """Let columns be named through this dataset."""
        object.__setattr__(self, "_relation", self._relation.with_origin(self._number))

    @property
    def _plan(self) -> Node:
        """The plan of the visible columns."""
        return self._relation.output()

    @property
    def _mode(self) -> SqlMode:
        """The mode of its expressions; without any, the mode of the session."""
        return next(modes_in(self._relation.node), None) or self._runner.mode

    def _building(self, call: str) -> AbstractContextManager[BuildContext]:
        return building(self, call)

    def _with(self, relation: Relation) -> Self:
        """A dataset of the same workspace."""
        check_plan_size(relation.node, self._runner.config)
        check_distinguishable(relation.node.schema.names)
        if not relation.visible:
            raise UserError("no column is left\n  to fix: keep at least one")
        return type(self)(relation, self._runner)

    def _on_spark(self, method: str, *arguments: object, reason: str, **named: object) -> Self:
        """The rows of a method of Spark's DataFrame over this dataset."""
        call = SparkCall(method=method, args=arguments, kwargs=named)
        with self._building(str(call)):
            analyzer = self._runner.analyzer
            if analyzer is None:
                raise NotNative(reason, fix="use a workspace with Spark")
            return self._with_plan(on_spark(analyzer, [("input_0", self._plan)], call, reason))

    def _spark_rows_now(self, method: str, *arguments: object) -> Self:
        """The rows of a method of Spark's DataFrame whose columns the rows decide: it runs now."""
        frame = self._runner.frame(self._plan)
        return self._with_plan(self._runner.scan_frame(getattr(frame, method)(*arguments)))

    def _as_query(self) -> exp.Select:
        """The rows as a query, for a place in another one."""
        return exp.Select(expressions=[exp.Star()], from_=exp.From(this=table_tree(self)))

    def _as_lateral(self) -> exp.Lateral:
        """The rows as a side of a lateral join."""
        return exp.Lateral(this=exp.Subquery(this=self._as_query()))

    def _value(self) -> list[Any]:
        """The values of the first column; the query runs."""
        batches, _ = self._runner.batches(self._plan)
        return [value for batch in batches for value in batch.column(0).to_pylist()]

    def _with_plan(self, plan: Node) -> Self:
        """A dataset of the same workspace whose columns have the plan's names."""
        return self._with(relation_of(plan))


def plan_of(dataset: DatasetBase) -> Node:
    """The plan of a dataset, for the modules that run it."""
    return relation_in(dataset).output()


@contextmanager
def building(dataset: DatasetBase, call: str) -> Iterator[BuildContext]:
    """The surroundings of a call; what is refused becomes an error that names the call."""
    runner = dataset._runner
    with limits_of(runner.config), in_mode(dataset._mode), as_user_error(call):
        builder = None if runner.analyzer is None else partial(on_spark, runner.analyzer)
        views = runner.views
        yield BuildContext(
            config=runner.config,
            on_spark=builder,
            analyzer=runner.analyzer,
            udfs=runner.udfs,
            call=call,
            catalog=views,
            local_rows=None if views is None else views.local_rows,
        )


def dataset_with(dataset: D, relation: Relation) -> D:
    """A dataset of another relation in the same workspace."""
    return dataset._with(relation)


def relation_in(dataset: DatasetBase) -> Relation:
    """The relation of a dataset."""
    return dataset._relation


def relation_of_other(other: object, call: str) -> Relation:
    """The relation of a dataset that was given to a call, where it is one."""
    return relation_in(_dataset(other, call))


def lateral_of(other: object, call: str) -> exp.Lateral:
    """A dataset that was given to a call, as a side that may name columns around it."""
    return _dataset(other, call)._as_lateral()


def _dataset(other: object, call: str) -> DatasetBase:
    if isinstance(other, DatasetBase):
        return other
    raise UserError(
        f"{call} takes a dataset\n  found: {type(other).__name__}\n"
        "  to fix: make one with ws.from_arrow(table), ws.from_spark(frame) or ws.read_parquet(..)"
    )


def numbered(dataset: DatasetBase) -> int:
    """The number that finds a dataset as long as it is there."""
    _by_number[-dataset._number] = dataset
    return -dataset._number


def query_of_number(number: int) -> exp.Select:
    """The query of a dataset that stands in a column."""
    return _by_number[number]._as_query()


def table_tree(dataset: DatasetBase) -> exp.Table:
    """A dataset as a table of FROM, under the alias that it has."""
    table = exp.Table(this=exp.to_identifier(f"{_TABLE}{numbered(dataset)}"))
    qualifiers = {a.qualifier for a in relation_in(dataset).visible}
    if len(qualifiers) == 1 and len(alias := qualifiers.pop()) == 1:
        table.set("alias", exp.TableAlias(this=exp.to_identifier(alias[0], quoted=True)))
    return table


def tables_in(*trees: exp.Expression) -> dict[str, Relation]:
    """The datasets that stand in trees as tables, by name."""
    names = {table.name for tree in trees for table in tree.find_all(exp.Table)}
    own = [name for name in names if name.startswith(_TABLE)]
    return {name: relation_in(_by_number[int(name.removeprefix(_TABLE))]) for name in own}


def shown_call(method: str, arguments: Sequence[object]) -> str:
    """A call of the user, for messages."""
    return f"{method}({', '.join(map(repr, arguments))})"
