"""The calls of a dataset on whole rows: order, number, partitions, and functions over batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from millrace.datasets.column_arguments import order_tree
from millrace.datasets.dataset_base import relation_of_other, shown_call
from millrace.datasets.dataset_select import DatasetSelect
from millrace.errors import UserError
from millrace.keys import check_partitions
from millrace.plan.builders.build_map_batches import plan_map
from millrace.plan.builders.build_rows import (
    distinct,
    drop_duplicates,
    limit,
    repartition,
    saved,
)
from millrace.plan.builders.build_sort import sort
from millrace.plan.builders.build_union import with_names_of
from millrace.plan.builders.build_window import plan_window
from millrace.plan.nodes.map_batches import Function
from millrace.plan.nodes.union import Union
from millrace.plan.relation import Attribute
from millrace.sql.name_checks import check_columns, check_keys, check_once, check_rows, named_texts
from millrace.sql.text_limits import limits_of


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetRows(DatasetSelect):
    """A dataset's rows."""

    def distinct(self) -> Self:
        """Each row once.

        Example:
            >>> orders.select("cust_id").distinct().count()
            2
        """
        with self._building("distinct()") as context:
            return self._with(distinct(context, self._relation))

    def drop_duplicates(self, *columns: str) -> Self:
        """One whole row for each value of the columns, the first; without columns, `distinct()`.

        Example:
            >>> orders.drop_duplicates("cust_id").sort("cust_id").to_arrow().to_pylist()
            [{'cust_id': 1, 'amount': 10}, {'cust_id': 2, 'amount': 20}]
        """
        if not columns:
            return self.distinct()
        call = shown_call("drop_duplicates", columns)
        keys = self._attributes(columns, call)
        with self._building(call) as context:
            return self._with(drop_duplicates(context, self._relation, keys))

    def window(
        self,
        columns: Mapping[str, str] | None = None,
        /,
        *,
        partition_by: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        frame: str | None = None,
        **more: str,
    ) -> Self:
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
            >>> largest.to_arrow()["amount"].to_pylist()
            [30, 20]
        """
        texts, call = named_texts("window", columns, more)
        with limits_of(self._runner.config):
            plan = plan_window(
                self._plan, texts, call, partition_by=partition_by, order_by=order_by, frame=frame
            )
        return self._with_plan(plan)

    def sort(self, *columns: str) -> Self:
        """All rows in order: `sort("nation", "amount DESC", "day ASC NULLS LAST")`.

        As in Spark, nulls are lowest and NaN is highest.

        Example:
            >>> orders.sort("cust_id", "amount DESC").to_arrow()["amount"].to_pylist()
            [30, 10, 20]
        """
        call = shown_call("sort", columns)
        if not columns:
            raise UserError(
                f"{call} has nothing to sort by\n  to fix: name a column, as in 'a DESC'"
            )
        with self._building(call) as context:
            orders = [order_tree(column, self._relation) for column in columns]
            return self._with(sort(context, self._relation, orders))

    def limit(self, rows: int) -> Self:
        """At most this many rows: after a sort the first ones, else any.

        Example:
            >>> orders.sort("amount DESC").limit(1).to_arrow().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        check_rows(rows, f"limit({rows!r})")
        return self._with(limit(self._relation, rows))

    def union(self, *others: DatasetSelect) -> Self:
        """All rows of this dataset and the others. Columns match by position, as in Spark.

        Example:
            >>> orders.union(orders.filter("amount > 10")).count()
            5
        """
        mine = self._relation.trimmed()
        sides = [relation_of_other(other, "union").trimmed().node for other in others]
        nodes = (mine.node, *(with_names_of(mine.node, side) for side in sides))
        return self._with(mine.over(Union(nodes, tuple(mine.node.schema.names))))

    def repartition(self, partitions: int, *keys: str) -> Self:
        """Rows by hash of the keys into this many partitions; without keys, evenly.

        Example:
            >>> orders.repartition(4, "cust_id").count()  # the same rows, now in 4 partitions
            3
        """
        attributes = self._attributes(keys, shown_call("repartition", [partitions, *keys]))
        check_partitions(partitions)
        return self._with(repartition(self._relation, partitions, attributes))

    def durable(self) -> Self:
        """Save the rows here: queries over them start from the saved files.

        Example:
            >>> big = orders.filter("amount > 10").durable()
            >>> big.count(), big.agg(total="sum(amount)").to_arrow()["total"][0].as_py()
            (2, 50)
        """
        return self._with(saved(self._relation))

    def map_batches(
        self, function: Function, schema: pa.Schema, version: str | None = None
    ) -> Self:
        """The rows that a function returns for each batch of rows.

        The function gets a RecordBatch with at least one row and returns a RecordBatch, a Table or
        an iterator of them, with the columns of `schema`. Work is reused as long as the function's
        code is the same. `version` stands for the code where it cannot be compared; change it when
        the function's results change.

        Example:
            >>> import pyarrow.compute as pc
            >>> def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
            ...     return batch.append_column("twice", pc.multiply(batch["amount"], 2))
            >>> schema = pa.schema([*orders.arrow_schema, ("twice", pa.int64())])
            >>> orders.map_batches(twice, schema, version="1").to_arrow()["twice"].to_pylist()
            [20, 40, 60]
        """
        return self._with_plan(plan_map(self._plan, function, schema, version))

    def _attributes(self, names: Sequence[str], call: str) -> list[Attribute]:
        """The columns of these names, which can be hashed."""
        schema = self._relation.schema
        if self._relation.has_unique_labels:
            check_keys(schema, names, call)
        else:
            check_columns(schema, names, call)
            check_once(names, call)
        by_name = {a.label: a for a in reversed(self._relation.visible)}
        return [by_name[name] for name in names]
