"""What a user of batch touches: a lazily described computation over files.

Invariant: everything that can be wrong with a call is said by that call, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millrace.config import Config
from millrace.errors import UserError
from millrace.keys import check_partitions
from millrace.plan.builders.joins import Names, plan_join
from millrace.plan.builders.sort_orders import with_order
from millrace.plan.builders.unions import named_as
from millrace.plan.builders.windows import plan_window
from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.asof_join import plan_asof
from millrace.plan.nodes.distinct import DistinctOn
from millrace.plan.nodes.interval_join import plan_interval
from millrace.plan.nodes.map_batches import Function, plan_map
from millrace.plan.nodes.node import Filter, Node, Project, Repartition, Union, only
from millrace.plan.nodes.placement import ByHash, Evenly, InPlace
from millrace.plan.nodes.sort import Sort, limited
from millrace.plan.planner.plan_depth import check_plan_size
from millrace.shuffle.handle import StageReport
from millrace.sql.aggregates.aggregate_expressions import parse_aggregate
from millrace.sql.expressions import Expression, parse, parse_conditions, parse_named, passed
from millrace.sql.line_offsets import Given
from millrace.sql.name_checks import (
    check_columns,
    check_keys,
    check_names_are_text,
    check_rows,
    check_told_apart,
)
from millrace.sql.text_limits import limits_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PlainText(str):
    """Text that a notebook shows as it is, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class PlanRunner(Protocol):
    """Runs plans; a workspace has one."""

    @property
    def config(self) -> Config:
        """The limits of its workspace."""

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], tuple[StageReport, ...]]:
        """The rows of a plan, and what each stage did."""

    def explain(self, plan: Node) -> str:
        """The stages of a plan, as text."""

    def frame(self, plan: Node) -> DataFrame:
        """The rows of a plan as a Spark DataFrame."""

    def write_parquet(
        self, plan: Node, path: str | os.PathLike[str], mode: str, compression: str
    ) -> ParquetWritten:
        """Write the rows of a plan as Parquet files."""

    def show(self, rows: pa.Table, count: int, truncate: int) -> None:
        """Print rows as Spark does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetWritten:
    """What `write_parquet` wrote.

    Example:
        >>> written = orders.write_parquet("copy")
        >>> written.rows
        3
    """

    path: str
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows that are not calculated yet. Made by `Workspace.read_parquet` and its like.

    Example:
        >>> joined = orders.join(customers, on="cust_id")
        >>> joined.group_by("nation").agg(total="sum(amount)").sort("nation").collect().to_pylist()
        [{'nation': 'de', 'total': 20}, {'nation': 'fr', 'total': 40}]
    """

    plan: Node
    runner: PlanRunner

    @property
    def schema(self) -> pa.Schema:
        """Columns and types, known without running anything.

        Example:
            >>> orders.schema.field("amount").type
            DataType(int64)
        """
        return self.plan.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns.

        Example:
            >>> orders.columns
            ['cust_id', 'amount']
        """
        return list(self.schema.names)

    def select(self, *columns: str) -> Dataset:
        """Columns, calculated ones too: `select("a", "a + 1 AS b")`.

        Example:
            >>> orders.select("cust_id", "amount * 2 AS double").columns
            ['cust_id', 'double']
        """
        call = f"select({', '.join(map(repr, columns))})"
        with limits_of(self.runner.config):
            named = [pair for text in columns for pair in parse_named(text, self.schema, call=call)]
        return self._with(Project(self.plan, _distinct_names(named, call)))

    def with_columns(self, **columns: str) -> Dataset:
        """The same columns and new ones, or new values for old ones: `with_columns(b="a + 1")`.

        Example:
            >>> orders.with_columns(double="amount * 2").columns
            ['cust_id', 'amount', 'double']
        """
        call = f"with_columns({', '.join(f'{k}={v!r}' for k, v in columns.items())})"
        with limits_of(self.runner.config):
            new = {name: parse(text, self.schema, call=call) for name, text in columns.items()}
        kept = [(name, new.pop(name) if name in new else column) for name, column in self._passed()]
        return self._with(Project(self.plan, (*kept, *new.items())))

    def rename(self, **names: str) -> Dataset:
        """The same columns under other names: `rename(old="new")`.

        Example:
            >>> orders.rename(cust_id="customer").columns
            ['customer', 'amount']
        """
        call = f"rename({', '.join(f'{k}={v!r}' for k, v in names.items())})"
        check_columns(self.schema, names, call)
        check_names_are_text(names.values(), call)
        pairs = [(names.get(name, name), column) for name, column in self._passed()]
        return self._with(Project(self.plan, _distinct_names(pairs, call)))

    def drop(self, *columns: str) -> Dataset:
        """All columns but these.

        Example:
            >>> orders.drop("amount").columns
            ['cust_id']
        """
        check_columns(self.schema, columns, f"drop({', '.join(map(repr, columns))})")
        kept = [(name, column) for name, column in self._passed() if name not in columns]
        if not kept:
            raise UserError("drop() leaves no column\n  to fix: keep at least one")
        return self._with(Project(self.plan, tuple(kept)))

    def filter(self, condition: str) -> Dataset:
        """Rows for which the condition is true: `filter("amount > 10")`.

        Example:
            >>> orders.filter("amount > 10 AND cust_id = 1").collect().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        call = f"filter({condition!r})"
        plan = self.plan
        with limits_of(self.runner.config):
            for part in parse_conditions(condition, self.schema, call=call):
                plan = Filter(plan, part)
        return self._with(plan)

    def group_by(self, *keys: str) -> GroupedData:
        """Groups of rows with equal keys, for `.agg(...)`. Null is a key like any other.

        Example:
            >>> orders.group_by("cust_id").agg(n="count(*)").sort("cust_id").collect().to_pylist()
            [{'cust_id': 1, 'n': 2}, {'cust_id': 2, 'n': 1}]
        """
        check_keys(self.schema, keys, f"group_by({', '.join(map(repr, keys))})")
        return GroupedData(self, keys)

    def agg(self, **aggregates: str) -> Dataset:
        """One row for all rows: `agg(total="sum(amount)", n="count(*)")`.

        Example:
            >>> orders.agg(total="sum(amount)", n="count(*)").collect().to_pylist()
            [{'total': 60, 'n': 3}]
        """
        return GroupedData(self, ()).agg(**aggregates)

    def distinct(self, *columns: str) -> Dataset:
        """Each row once; with columns, the first row for each distinct value of these.

        Example:
            >>> orders.select("cust_id").distinct().count()
            2
        """
        check_keys(self.schema, columns or self.columns, f"distinct({', '.join(columns)})")
        if columns:
            return self._with(DistinctOn(self.plan, columns))
        return self._with(Aggregate(self.plan, tuple(self.columns), ()))

    def window(
        self,
        *,
        partition_by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        frame: str | None = None,
        **columns: str,
    ) -> Dataset:
        """The same rows with new columns, calculated from rows of the same partition.

        `window(partition_by="k", order_by="day", n="row_number()", change="x - lag(x)")`. `frame`,
        such as "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", is for aggregates and first, last and
        nth values. Rows that are equal in the order stay in the order they come in.

        Example:
            >>> ranked = orders.window(
            ...     partition_by="cust_id", order_by="amount DESC", place="row_number()"
            ... )
            >>> ranked.filter("place = 1").sort("cust_id").collect()["amount"].to_pylist()
            [30, 20]
        """
        with limits_of(self.runner.config):
            plan = plan_window(
                self.plan, columns, partition_by=partition_by, order_by=order_by, frame=frame
            )
        return self._with(plan)

    def join(
        self,
        other: Dataset,
        on: str | Sequence[str] | None = None,
        how: str = "inner",
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        condition: str | None = None,
    ) -> Dataset:
        """Rows of both sides whose keys are equal, and that meet the condition if there is one.

        `on` names keys that both sides have; they come first in the result, once. `left_on` and
        `right_on` name them where they differ, and all columns are kept. A column of the right side
        whose name is taken gets `_right`, in the condition too. `how` is as in PySpark: inner,
        left, right, full, semi, anti, cross.

        Example:
            >>> orders.join(customers, on="cust_id").columns
            ['cust_id', 'amount', 'nation']
            >>> orders.join(customers, on="cust_id", how="left", condition="nation = 'fr'").count()
            3
        """
        with limits_of(self.runner.config):
            plan = plan_join(
                self.plan,
                plan_of(other, "join"),
                on=on,
                left_on=left_on,
                right_on=right_on,
                how=how,
                condition=condition,
            )
        return self._with(plan)

    def join_asof(
        self,
        other: Dataset,
        on: str | None = None,
        *,
        left_on: str | None = None,
        right_on: str | None = None,
        by: Names = None,
        left_by: Names = None,
        right_by: Names = None,
        direction: str = "backward",
        tolerance: Given | None = None,
        how: str = "left",
    ) -> Dataset:
        """Each row with the row of the other side that is nearest in `on`, and equal in `by`.

        `on` is a number, date or timestamp. `direction`: "backward" is the last row at or before,
        "forward" the first at or after, "nearest" the nearer of the two and before if they are
        equally near. No further than `tolerance`, a number or for times an interval such as
        "10 seconds". Of equal rows the last one is taken. `how` is left or inner.

        Example:
            >>> trades = ws.from_arrow(pa.table({"at": [10, 30]}))
            >>> quotes = ws.from_arrow(pa.table({"at": [5, 20], "price": [99, 100]}))
            >>> priced = trades.join_asof(quotes, on="at", tolerance=10)
            >>> priced.sort("at").collect()["price"].to_pylist()
            [99, 100]
        """
        plan = plan_asof(
            self.plan,
            plan_of(other, "join_asof"),
            on=(on, left_on, right_on),
            by=(by, left_by, right_by),
            direction=direction,
            tolerance=tolerance,
            how=how,
        )
        return self._with(plan)

    def join_interval(
        self,
        other: Dataset,
        *,
        left_on: str,
        right_on: str,
        lower: Given,
        upper: Given,
        by: Names = None,
        left_by: Names = None,
        right_by: Names = None,
        how: str = "inner",
    ) -> Dataset:
        """Pairs of rows, equal in `by`: `right_on` is between `left_on + lower` and `+ upper`.

        Both ends belong to it. They are numbers or, for dates and timestamps, intervals such as
        "-10 seconds". `how` is inner or left.

        Example:
            >>> visits = ws.from_arrow(pa.table({"who": ["a"], "at": [100]}))
            >>> sales = ws.from_arrow(pa.table({"who": ["a", "a"], "paid_at": [105, 500]}))
            >>> soon = visits.join_interval(
            ...     sales, left_on="at", right_on="paid_at", lower=0, upper=60, by="who"
            ... )
            >>> soon.collect()["paid_at"].to_pylist()
            [105]
        """
        plan = plan_interval(
            self.plan,
            plan_of(other, "join_interval"),
            on=(None, left_on, right_on),
            by=(by, left_by, right_by),
            lower=lower,
            upper=upper,
            how=how,
        )
        return self._with(plan)

    def sort(self, *columns: str) -> Dataset:
        """All rows in order: `sort("nation", "amount DESC", "day ASC NULLS LAST")`.

        As in Spark, nulls are lowest and NaN is highest.

        Example:
            >>> orders.sort("cust_id", "amount DESC").collect()["amount"].to_pylist()
            [30, 10, 20]
        """
        call = f"sort({', '.join(map(repr, columns))})"
        with limits_of(self.runner.config):
            rows, keys = with_order(self.plan, columns, call)
        return self._with(only(Sort(rows, keys), self.columns))

    def limit(self, rows: int) -> Dataset:
        """At most so many rows: behind a sort the first of the order, else any of them.

        Example:
            >>> orders.sort("amount DESC").limit(1).collect().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        check_rows(rows, f"limit({rows!r})")
        return self._with(limited(self.plan, rows))

    def union(self, *others: Dataset) -> Dataset:
        """All rows of this and the others. Columns are matched by place, as in Spark.

        Example:
            >>> orders.union(orders.filter("amount > 10")).count()
            5
        """
        sides = tuple(named_as(self.plan, plan_of(other, "union")) for other in others)
        return self._with(Union((self.plan, *sides), tuple(self.columns)))

    def repartition(self, partitions: int, *keys: str) -> Dataset:
        """Rows with equal keys together in one of so many partitions; without keys, in turn.

        Example:
            >>> orders.repartition(4, "cust_id").count()  # the same rows, now in 4 partitions
            3
        """
        call = f"repartition({', '.join(map(repr, (partitions, *keys)))})"
        check_keys(self.schema, keys, call)
        check_partitions(partitions)
        by = ByHash(keys, partitions) if keys else Evenly(partitions)
        return self._with(Repartition(self.plan, by))

    def durable(self) -> Dataset:
        """Keep the rows at rest here: what is calculated from them later starts from there.

        Example:
            >>> big = orders.filter("amount > 10").durable()
            >>> big.count(), big.agg(total="sum(amount)").collect()["total"][0].as_py()
            (2, 50)
        """
        return self._with(Repartition(self.plan, InPlace()))

    def map_batches(
        self, function: Function, schema: pa.Schema, version: str | None = None
    ) -> Dataset:
        """Rows that a function makes of these, batch by batch.

        The function gets a RecordBatch that is not empty and returns a RecordBatch, a Table or an
        iterator of them, with the columns of `schema`. Finished work is recognised by its code;
        `version` names it where code cannot tell, and has to change when its results do.

        Example:
            >>> import pyarrow.compute as pc
            >>> def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
            ...     return batch.append_column("twice", pc.multiply(batch["amount"], 2))
            >>> schema = pa.schema([*orders.schema, ("twice", pa.int64())])
            >>> orders.map_batches(twice, schema, version="1").collect()["twice"].to_pylist()
            [20, 40, 60]
        """
        return self._with(plan_map(self.plan, function, schema, version))

    def collect(self) -> pa.Table:
        """All rows as a table.

        Example:
            >>> orders.collect()["amount"].to_pylist()
            [10, 20, 30]
        """
        rows, _ = self.runner.batches(self.plan)
        return pa.Table.from_batches(rows, self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as a stream that holds few of them at a time.

        Example:
            >>> sum(batch.num_rows for batch in orders.to_batches())
            3
        """
        rows, _ = self.runner.batches(self.plan)
        return rows

    def to_spark(self) -> DataFrame:
        """The rows as a Spark DataFrame, in their order.

        The query runs now; its rows are read by Spark's tasks, whenever Spark asks for them.

        Example:
            >>> frame = orders.filter("amount > 10").to_spark()
            >>> frame.columns, frame.count()
            (['cust_id', 'amount'], 2)
        """
        return self.runner.frame(self.plan)

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
        return self.runner.write_parquet(self.plan, path, mode, compression)

    def show(self, n: int = 20, truncate: int = 20) -> None:
        """Print the first rows as Spark's `show` does; `truncate=False` shows long values whole.

        Example:
            >>> customers.show()
            +-------+------+
            |cust_id|nation|
            +-------+------+
            |      1|    fr|
            |      2|    de|
            +-------+------+
        """
        check_rows(n, f"show({n!r})")
        self.runner.show(self.limit(n + 1).collect(), n, truncate)

    def count(self) -> int:
        """How many rows there are.

        Example:
            >>> orders.count()
            3
        """
        return int(self.agg(n="count(*)").collect()["n"][0].as_py())

    def run(self) -> tuple[StageReport, ...]:
        """Put the rows at rest, and say for each stage what ran, what was reused and why.

        Example:
            >>> counted = orders.group_by("cust_id").agg(n="count(*)")
            >>> first = counted.run()
            >>> [stage.ran for stage in counted.run()]  # nothing is done a second time
            [0]
        """
        _, reports = self.runner.batches(self.plan)
        return reports

    def explain(self) -> PlainText:
        """The stages this would run in, with their exchanges.

        Example:
            >>> orders.group_by("cust_id").agg(n="count(*)").explain()
            stage 0...
        """
        return PlainText(self.runner.explain(self.plan))

    def _with(self, plan: Node) -> Dataset:
        check_plan_size(plan, self.runner.config)
        check_told_apart(plan.schema.names)
        return Dataset(plan, self.runner)

    def _passed(self) -> list[tuple[str, Expression]]:
        """All columns as they are, by their names."""
        return [passed(field) for field in self.schema]


@dataclass(frozen=True, slots=True)
class GroupedData:
    """Groups of a dataset's rows, waiting to be put together.

    Example:
        >>> by_customer = orders.group_by("cust_id")
        >>> by_customer.agg(total="sum(amount)").columns
        ['cust_id', 'total']
    """

    dataset: Dataset
    keys: tuple[str, ...]

    def agg(self, **aggregates: str) -> Dataset:
        """One row per group: the keys, then these: `agg(total="sum(amount)", n="count(*)")`.

        Example:
            >>> orders.group_by("cust_id").agg(total="sum(amount)", largest="max(amount)").columns
            ['cust_id', 'total', 'largest']
        """
        call = f"agg({', '.join(f'{k}={v!r}' for k, v in aggregates.items())})"
        taken = [name for name in aggregates if name in self.keys]
        if taken:
            raise UserError(f"{call}: {taken[0]!r} is a key already\n  to fix: choose another name")
        if not aggregates and not self.keys:
            raise UserError("agg() has nothing to calculate\n  to fix: agg(n='count(*)')")
        schema = self.dataset.schema
        with limits_of(self.dataset.runner.config):
            parsed = tuple(
                parse_aggregate(name, text, schema, call=call) for name, text in aggregates.items()
            )
        plan = Aggregate(self.dataset.plan, self.keys, parsed)
        return self.dataset._with(plan)  # noqa: SLF001 - its own


def plan_of(other: object, call: str) -> Node:
    """The plan of another dataset that a call was given."""
    if isinstance(other, Dataset):
        return other.plan
    raise UserError(
        f"{call} takes a dataset\n  found: {type(other).__name__}\n"
        "  to fix: make one with ws.from_arrow(table), ws.from_spark(frame) or ws.read_parquet(..)"
    )


def _distinct_names(
    named: Sequence[tuple[str, Expression]], call: str
) -> tuple[tuple[str, Expression], ...]:
    names = [name for name, _ in named]
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UserError(f"{call}: two columns named {doubled[0]!r}\n  to fix: give one an AS name")
    if not named:
        raise UserError(f"{call} has no columns\n  to fix: name at least one")
    return tuple(named)
