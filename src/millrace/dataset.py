"""Datasets: a query is described call by call, and runs when its rows are asked for.

Invariant: a call that is wrong fails at once, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.dataset_joins import DatasetJoins, plan_of_other
from millrace.errors import UserError
from millrace.keys import check_partitions
from millrace.plan.builders.build_map_batches import plan_map
from millrace.plan.builders.build_union import with_names_of
from millrace.plan.builders.build_window import plan_window
from millrace.plan.builders.sort_orders import first_rows, with_order
from millrace.plan.nodes.aggregate import Aggregate
from millrace.plan.nodes.drop_duplicates import DropDuplicates
from millrace.plan.nodes.exchange import Repartition
from millrace.plan.nodes.filter import Filter
from millrace.plan.nodes.map_batches import Function
from millrace.plan.nodes.placement import ByHash, Evenly, InPlace
from millrace.plan.nodes.project import Project, select_only
from millrace.plan.nodes.sort import Sort
from millrace.plan.nodes.union import Union
from millrace.sql.aggregates.aggregate_expressions import parse_aggregate
from millrace.sql.expressions import as_is, parse, parse_conditions, parse_named
from millrace.sql.name_checks import (
    check_columns,
    check_keys,
    check_named_once,
    check_names_are_text,
    check_rows,
    named_texts,
)
from millrace.sql.text_limits import limits_of

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, repr=False)
class Dataset(DatasetJoins):
    """A query: a source, and the operators over its rows. `ws.read_parquet` and others make one.

    Example:
        >>> joined = orders.join(customers, on="cust_id")
        >>> joined.group_by("nation").agg(total="sum(amount)").sort("nation").collect().to_pylist()
        [{'nation': 'de', 'total': 20}, {'nation': 'fr', 'total': 40}]
    """

    def select(self, *columns: str) -> Dataset:
        """Columns, calculated ones too: `select("a", "a + 1 AS b")`.

        Example:
            >>> orders.select("cust_id", "amount * 2 AS double").columns
            ['cust_id', 'double']
        """
        call = f"select({', '.join(map(repr, columns))})"
        with limits_of(self._runner.config):
            named = [pair for text in columns for pair in parse_named(text, self.schema, call=call)]
        return self._with(Project(self._plan, check_named_once(named, call)))

    def with_columns(self, columns: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """The same columns and new ones, or new values for old ones: `with_columns(b="a + 1")`.

        A mapping makes columns of any name; keywords and a mapping can be given together.

        Example:
            >>> orders.with_columns({"twice the amount": "amount * 2"}, half="amount / 2").columns
            ['cust_id', 'amount', 'twice the amount', 'half']
        """
        named, call = named_texts("with_columns", columns, more)
        with limits_of(self._runner.config):
            new = {name: parse(text, self.schema, call=call) for name, text in named.items()}
        kept = [(name, new.pop(name, column)) for name, column in map(as_is, self.schema)]
        return self._with(Project(self._plan, (*kept, *new.items())))

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """The same columns under other names: `rename(old="new")`, `rename({"old": "a new one"})`.

        Example:
            >>> orders.rename({"amount": "amount in EUR"}, cust_id="customer").columns
            ['customer', 'amount in EUR']
        """
        new, call = named_texts("rename", names, more)
        check_columns(self.schema, new, call)
        check_names_are_text(new.values(), call)
        pairs = [(new.get(name, name), column) for name, column in map(as_is, self.schema)]
        return self._with(Project(self._plan, check_named_once(pairs, call)))

    def drop(self, *columns: str) -> Dataset:
        """All columns but these.

        Example:
            >>> orders.drop("amount").columns
            ['cust_id']
        """
        check_columns(self.schema, columns, f"drop({', '.join(map(repr, columns))})")
        kept = [(name, column) for name, column in map(as_is, self.schema) if name not in columns]
        if not kept:
            raise UserError("drop() leaves no column\n  to fix: keep at least one")
        return self._with(Project(self._plan, tuple(kept)))

    def filter(self, condition: str) -> Dataset:
        """Rows for which the condition is true: `filter("amount > 10")`.

        Example:
            >>> orders.filter("amount > 10 AND cust_id = 1").collect().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        call = f"filter({condition!r})"
        plan = self._plan
        with limits_of(self._runner.config):
            for part in parse_conditions(condition, self.schema, call=call):
                plan = Filter(plan, part)
        return self._with(plan)

    def group_by(self, *keys: str) -> GroupedData:
        """Groups of rows with equal keys, for `.agg(...)`. Null is a key as any other value.

        Example:
            >>> orders.group_by("cust_id").agg(n="count(*)").sort("cust_id").collect().to_pylist()
            [{'cust_id': 1, 'n': 2}, {'cust_id': 2, 'n': 1}]
        """
        check_keys(self.schema, keys, f"group_by({', '.join(map(repr, keys))})")
        return GroupedData(self, keys)

    def agg(self, aggregates: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """One row for all rows: `agg(total="sum(amount)", n="count(*)")`.

        Example:
            >>> orders.agg({"total amount": "sum(amount)"}, n="count(*)").collect().to_pylist()
            [{'total amount': 60, 'n': 3}]
        """
        return GroupedData(self, ()).agg(aggregates, **more)

    def distinct(self) -> Dataset:
        """Each row once.

        Example:
            >>> orders.select("cust_id").distinct().count()
            2
        """
        check_keys(self.schema, self.columns, "distinct()")
        return self._with(Aggregate(self._plan, tuple(self.columns), ()))

    def drop_duplicates(self, *columns: str) -> Dataset:
        """One whole row for each value of the columns, the first; without columns, `distinct()`.

        Example:
            >>> orders.drop_duplicates("cust_id").sort("cust_id").collect().to_pylist()
            [{'cust_id': 1, 'amount': 10}, {'cust_id': 2, 'amount': 20}]
        """
        if not columns:
            return self.distinct()
        check_keys(self.schema, columns, f"drop_duplicates({', '.join(map(repr, columns))})")
        return self._with(DropDuplicates(self._plan, columns))

    def window(
        self,
        columns: Mapping[str, str] | None = None,
        /,
        *,
        partition_by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        frame: str | None = None,
        **more: str,
    ) -> Dataset:
        """The same rows with new columns, calculated from rows of the same partition.

        `window(partition_by="k", order_by="day", n="row_number()", change="x - lag(x)")`; columns
        of any name by a mapping. `frame`, such as "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", is
        for aggregates and first, last and nth values. Rows with equal `order_by` keep the order of
        their input.

        Example:
            >>> ranked = orders.window(
            ...     {"order rank": "row_number()"}, partition_by="cust_id", order_by="amount DESC"
            ... )
            >>> largest = ranked.filter("`order rank` = 1").sort("cust_id")
            >>> largest.collect()["amount"].to_pylist()
            [30, 20]
        """
        named, call = named_texts("window", columns, more)
        with limits_of(self._runner.config):
            plan = plan_window(
                self._plan, named, call, partition_by=partition_by, order_by=order_by, frame=frame
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
        with limits_of(self._runner.config):
            rows, keys = with_order(self._plan, columns, call)
        return self._with(select_only(Sort(rows, keys), self.columns))

    def limit(self, rows: int) -> Dataset:
        """At most this many rows: after a sort the first ones, else any.

        Example:
            >>> orders.sort("amount DESC").limit(1).collect().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        check_rows(rows, f"limit({rows!r})")
        return self._with(first_rows(self._plan, rows))

    def union(self, *others: Dataset) -> Dataset:
        """All rows of this dataset and the others. Columns match by position, as in Spark.

        Example:
            >>> orders.union(orders.filter("amount > 10")).count()
            5
        """
        sides = tuple(with_names_of(self._plan, plan_of_other(other, "union")) for other in others)
        return self._with(Union((self._plan, *sides), tuple(self.columns)))

    def repartition(self, partitions: int, *keys: str) -> Dataset:
        """Rows by hash of the keys into this many partitions; without keys, evenly.

        Example:
            >>> orders.repartition(4, "cust_id").count()  # the same rows, now in 4 partitions
            3
        """
        call = f"repartition({', '.join(map(repr, (partitions, *keys)))})"
        check_keys(self.schema, keys, call)
        check_partitions(partitions)
        by = ByHash(keys, partitions) if keys else Evenly(partitions)
        return self._with(Repartition(self._plan, by))

    def durable(self) -> Dataset:
        """Save the rows here: queries over them start from the saved files.

        Example:
            >>> big = orders.filter("amount > 10").durable()
            >>> big.count(), big.agg(total="sum(amount)").collect()["total"][0].as_py()
            (2, 50)
        """
        return self._with(Repartition(self._plan, InPlace()))

    def map_batches(
        self, function: Function, schema: pa.Schema, version: str | None = None
    ) -> Dataset:
        """The rows that a function returns for each batch of rows.

        The function gets a RecordBatch with at least one row and returns a RecordBatch, a Table or
        an iterator of them, with the columns of `schema`. Work is reused as long as the function's
        code is the same. `version` stands for the code where it cannot be compared; change it when
        the function's results change.

        Example:
            >>> import pyarrow.compute as pc
            >>> def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
            ...     return batch.append_column("twice", pc.multiply(batch["amount"], 2))
            >>> schema = pa.schema([*orders.schema, ("twice", pa.int64())])
            >>> orders.map_batches(twice, schema, version="1").collect()["twice"].to_pylist()
            [20, 40, 60]
        """
        return self._with(plan_map(self._plan, function, schema, version))

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
        self._runner.show(self.limit(n + 1).collect(), n, truncate)

    def count(self) -> int:
        """The number of rows.

        Example:
            >>> orders.count()
            3
        """
        return int(self.agg(n="count(*)").collect()["n"][0].as_py())

    def _aggregated(
        self, keys: tuple[str, ...], aggregates: Mapping[str, str], call: str
    ) -> Dataset:
        """One row for each group of equal keys."""
        taken = [name for name in aggregates if name in keys]
        if taken:
            raise UserError(f"{call}: {taken[0]!r} is a key already\n  to fix: choose another name")
        if not aggregates and not keys:
            raise UserError("agg() has nothing to calculate\n  to fix: agg(n='count(*)')")
        with limits_of(self._runner.config):
            parsed = tuple(
                parse_aggregate(name, text, self.schema, call=call)
                for name, text in aggregates.items()
            )
        return self._with(Aggregate(self._plan, keys, parsed))


@dataclass(frozen=True, slots=True, repr=False)
class GroupedData:
    """Groups of a dataset's rows with equal keys, to be aggregated.

    Example:
        >>> by_customer = orders.group_by("cust_id")
        >>> by_customer.agg(total="sum(amount)").columns
        ['cust_id', 'total']
    """

    _dataset: Dataset
    _keys: tuple[str, ...]

    def __repr__(self) -> str:
        return f"GroupedData[{', '.join(self._keys)}]"

    def agg(self, aggregates: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """One row per group: the keys, then the aggregates: `agg(total="sum(amount)")`.

        Example:
            >>> by_customer = orders.group_by("cust_id")
            >>> by_customer.agg({"total amount": "sum(amount)"}, largest="max(amount)").columns
            ['cust_id', 'total amount', 'largest']
        """
        return self._dataset._aggregated(self._keys, *named_texts("agg", aggregates, more))  # noqa: SLF001 - its own
