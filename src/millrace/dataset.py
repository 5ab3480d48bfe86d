"""What a user of batch touches: a lazily described computation over files.

Invariant: everything that can be wrong with a call is said by that call, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from millrace.errors import UserError
from millrace.keys import check_partitions
from millrace.plan.aggregate import Aggregate
from millrace.plan.aggregates import parse_aggregate
from millrace.plan.asof import plan_asof
from millrace.plan.distinct import DistinctOn
from millrace.plan.expressions import Expression, parse, parse_conditions, parse_named
from millrace.plan.interval import plan_interval
from millrace.plan.joining import Names, plan_join
from millrace.plan.mapped import Function, plan_map
from millrace.plan.names import check_columns, check_keys, check_rows, check_told_apart
from millrace.plan.nodes import Filter, Node, Project, Repartition, Union, only
from millrace.plan.offsets import Given
from millrace.plan.ordering import with_order
from millrace.plan.placement import ByHash, Evenly, InPlace
from millrace.plan.sorting import Sort, limited
from millrace.plan.unions import named_as
from millrace.plan.windowing import plan_window
from millrace.shuffle.handle import RunReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Text(str):
    """Text that a notebook shows as it is, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Runner(Protocol):
    """Runs plans; a workspace has one."""

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], tuple[RunReport, ...]]:
        """The rows of a plan, and what each stage did."""

    def explain(self, plan: Node) -> str:
        """The stages of a plan, as text."""

    def frame(self, plan: Node) -> DataFrame:
        """The rows of a plan as a Spark DataFrame."""

    def write_parquet(
        self, plan: Node, path: str | os.PathLike[str], mode: str, compression: str
    ) -> Written:
        """Write the rows of a plan as Parquet files."""

    def show(self, rows: pa.Table, count: int, truncate: int) -> None:
        """Print rows as Spark does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What `write_parquet` wrote."""

    path: str
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows that are not calculated yet. Made by `Workspace.read_parquet` and its like.

    Example:
        >>> orders = ws.read_parquet("orders/")
        >>> big = orders.filter("amount > 10").join(customers, on="cust_id")
        >>> big.group_by("nation").agg(total="sum(amount)", n="count(*)").collect()
    """

    plan: Node
    runner: Runner

    @property
    def schema(self) -> pa.Schema:
        """Columns and types, known without running anything."""
        return self.plan.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def select(self, *columns: str) -> Dataset:
        """Columns, calculated ones too: `select("a", "a + 1 AS b")`."""
        call = f"select({', '.join(map(repr, columns))})"
        named = [pair for text in columns for pair in parse_named(text, self.schema, call=call)]
        return self._with(Project(self.plan, _distinct_names(named, call)))

    def with_columns(self, **columns: str) -> Dataset:
        """The same columns and new ones, or new values for old ones: `with_columns(b="a + 1")`."""
        call = f"with_columns({', '.join(f'{k}={v!r}' for k, v in columns.items())})"
        new = {name: parse(text, self.schema, call=call) for name, text in columns.items()}
        kept = [
            (name, new.pop(name) if name in new else self._column(name)) for name in self.columns
        ]
        return self._with(Project(self.plan, (*kept, *new.items())))

    def rename(self, **names: str) -> Dataset:
        """The same columns under other names: `rename(old="new")`."""
        call = f"rename({', '.join(f'{k}={v!r}' for k, v in names.items())})"
        check_columns(self.schema, names, call)
        pairs = [(names.get(name, name), self._column(name)) for name in self.columns]
        return self._with(Project(self.plan, _distinct_names(pairs, call)))

    def drop(self, *columns: str) -> Dataset:
        """All columns but these."""
        check_columns(self.schema, columns, f"drop({', '.join(map(repr, columns))})")
        kept = [(name, self._column(name)) for name in self.columns if name not in columns]
        if not kept:
            raise UserError("drop() leaves no column\n  to fix: keep at least one")
        return self._with(Project(self.plan, tuple(kept)))

    def filter(self, condition: str) -> Dataset:
        """Rows for which the condition is true: `filter("amount > 10")`."""
        call = f"filter({condition!r})"
        plan = self.plan
        for part in parse_conditions(condition, self.schema, call=call):
            plan = Filter(plan, part)
        return self._with(plan)

    def group_by(self, *keys: str) -> Grouped:
        """Groups of rows with equal keys, for `.agg(...)`. Null is a key like any other."""
        check_keys(self.schema, keys, f"group_by({', '.join(map(repr, keys))})")
        return Grouped(self, keys)

    def agg(self, **aggregates: str) -> Dataset:
        """One row for all rows: `agg(total="sum(amount)", n="count(*)")`."""
        return Grouped(self, ()).agg(**aggregates)

    def distinct(self, *columns: str) -> Dataset:
        """Each row once; with columns, the first row for each distinct value of these."""
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
        """
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
        """
        return self._with(
            plan_join(
                self.plan,
                other.plan,
                on=on,
                left_on=left_on,
                right_on=right_on,
                how=how,
                condition=condition,
            )
        )

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
        """
        plan = plan_asof(
            self.plan,
            other.plan,
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
        """
        plan = plan_interval(
            self.plan,
            other.plan,
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
        """
        call = f"sort({', '.join(map(repr, columns))})"
        rows, keys = with_order(self.plan, columns, call)
        return self._with(only(Sort(rows, keys), self.columns))

    def limit(self, rows: int) -> Dataset:
        """At most so many rows: behind a sort the first of the order, else any of them."""
        check_rows(rows, f"limit({rows!r})")
        return self._with(limited(self.plan, rows))

    def union(self, *others: Dataset) -> Dataset:
        """All rows of this and the others. Columns are matched by place, as in Spark."""
        sides = tuple(named_as(self.plan, other.plan) for other in others)
        return self._with(Union((self.plan, *sides), tuple(self.columns)))

    def repartition(self, partitions: int, *keys: str) -> Dataset:
        """Rows with equal keys together in one of so many partitions; without keys, in turn."""
        call = f"repartition({', '.join(map(repr, (partitions, *keys)))})"
        check_keys(self.schema, keys, call)
        check_partitions(partitions)
        by = ByHash(keys, partitions) if keys else Evenly(partitions)
        return self._with(Repartition(self.plan, by))

    def durable(self) -> Dataset:
        """Keep the rows at rest here: what is calculated from them later starts from there."""
        return self._with(Repartition(self.plan, InPlace()))

    def map_batches(
        self, function: Function, schema: pa.Schema, version: str | None = None
    ) -> Dataset:
        """Rows that a function makes of these, batch by batch.

        The function gets a RecordBatch that is not empty and returns a RecordBatch, a Table or an
        iterator of them, with the columns of `schema`. Finished work is recognised by its code;
        `version` names it where code cannot tell, and has to change when its results do.

        Example:
            >>> def twice(batch):
            ...     return batch.append_column("w", pc.multiply(batch["v"], 2))
            >>> ds.map_batches(twice, pa.schema([("v", pa.int64()), ("w", pa.int64())]))
        """
        return self._with(plan_map(self.plan, function, schema, version))

    def collect(self) -> pa.Table:
        """All rows as a table."""
        rows, _ = self.runner.batches(self.plan)
        return pa.Table.from_batches(rows, self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as a stream that holds few of them at a time."""
        rows, _ = self.runner.batches(self.plan)
        return rows

    def to_spark(self) -> DataFrame:
        """The rows as a Spark DataFrame, in their order.

        The query runs now; its rows are read by Spark's tasks, whenever Spark asks for them.
        """
        return self.runner.frame(self.plan)

    def write_parquet(
        self, path: str | os.PathLike[str], mode: str = "error", *, compression: str = "snappy"
    ) -> Written:
        """Write the rows as a folder of Parquet files, all of it or nothing.

        Args:
            path: the folder, on a disk that all hosts share.
            mode: "error" if there is something already, or "overwrite".
            compression: "none", "snappy", "gzip", "lz4" or "zstd".
        """
        return self.runner.write_parquet(self.plan, path, mode, compression)

    def show(self, n: int = 20, truncate: int = 20) -> None:
        """Print the first rows as Spark's `show` does; `truncate=False` shows long values whole."""
        check_rows(n, f"show({n!r})")
        self.runner.show(self.limit(n + 1).collect(), n, truncate)

    def count(self) -> int:
        """How many rows there are."""
        return int(self.agg(n="count(*)").collect()["n"][0].as_py())

    def run(self) -> tuple[RunReport, ...]:
        """Put the rows at rest, and say for each stage what ran, what was reused and why."""
        _, reports = self.runner.batches(self.plan)
        return reports

    def explain(self) -> Text:
        """The stages this would run in, with their exchanges."""
        return Text(self.runner.explain(self.plan))

    def _with(self, plan: Node) -> Dataset:
        check_told_apart(plan.schema.names)
        return Dataset(plan, self.runner)

    def _column(self, name: str) -> Expression:
        quoted = "`" + name.replace("`", "``") + "`"
        return parse(quoted, self.schema, call=f"column {name!r}")


@dataclass(frozen=True, slots=True)
class Grouped:
    """Groups of a dataset's rows, waiting to be put together."""

    dataset: Dataset
    keys: tuple[str, ...]

    def agg(self, **aggregates: str) -> Dataset:
        """One row per group: the keys, then these: `agg(total="sum(amount)", n="count(*)")`."""
        call = f"agg({', '.join(f'{k}={v!r}' for k, v in aggregates.items())})"
        taken = [name for name in aggregates if name in self.keys]
        if taken:
            raise UserError(f"{call}: {taken[0]!r} is a key already\n  to fix: choose another name")
        if not aggregates and not self.keys:
            raise UserError("agg() has nothing to calculate\n  to fix: agg(n='count(*)')")
        schema = self.dataset.schema
        parsed = tuple(
            parse_aggregate(name, text, schema, call=call) for name, text in aggregates.items()
        )
        plan = Aggregate(self.dataset.plan, self.keys, parsed)
        return self.dataset._with(plan)  # noqa: SLF001 - its own


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
