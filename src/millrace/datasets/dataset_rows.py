"""The calls of a dataset on whole rows: order, number, partitions, and functions over batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from sqlglot import exp

from millrace.datasets.column_arguments import ColumnOrName, column_tree, flat, order_tree
from millrace.datasets.dataset_base import shown_call, tables_in
from millrace.datasets.dataset_select import DatasetSelect
from millrace.errors import UserError
from millrace.keys import check_partitions
from millrace.plan.builders.build_rows import (
    check_hashable,
    distinct,
    drop_duplicates,
    limit,
    repartition,
    saved,
)
from millrace.plan.builders.build_sort import sort
from millrace.plan.builders.build_window import plan_window
from millrace.plan.builders.name_resolution import resolve
from millrace.plan.builders.user_code.build_map_batches import plan_map
from millrace.plan.builders.user_code.build_row_functions import map_rows
from millrace.plan.nodes.map_batches import Function
from millrace.plan.relation import Attribute, Relation
from millrace.plan.statements.statement import rows_with_values
from millrace.sql.name_checks import check_rows, named_texts
from millrace.sql.sql_mode import in_mode
from millrace.sql.text_limits import limits_of
from millrace.sql.typed_sql import ExpressionRefused, NotNative

_REPARTITION_DEFAULT: Final = 32


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

    def drop_duplicates(self, subset: str | Sequence[str] | None = None, *more: str) -> Self:
        """One whole row for each value of the columns, the first; without columns, `distinct()`.

        Example:
            >>> orders.drop_duplicates("cust_id").sort("cust_id").to_arrow().to_pylist()
            [{'cust_id': 1, 'amount': 10}, {'cust_id': 2, 'amount': 20}]
        """
        if subset is None:
            return self.distinct()
        columns = flat([subset, *more])
        call = shown_call("drop_duplicates", columns)
        keys = self._attributes(columns, call)
        with self._building(call) as context:
            return self._with(drop_duplicates(context, self._relation, keys))

    def dropDuplicates(self, subset: str | Sequence[str] | None = None, *more: str) -> Self:
        """One whole row for each value of the columns; without columns, each row once."""
        return self.drop_duplicates(subset, *more)

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
        with limits_of(self._runner.config), in_mode(self._mode):
            plan = plan_window(
                self._plan, texts, call, partition_by=partition_by, order_by=order_by, frame=frame
            )
        return self._with_plan(plan)

    def sort(
        self,
        *cols: ColumnOrName | int | list[ColumnOrName | int],
        ascending: bool | int | Sequence[bool | int] | None = None,
    ) -> Self:
        """All rows in order: `sort("nation", "amount DESC", "day ASC NULLS LAST")`.

        As in Spark, nulls are lowest and NaN is highest; `ascending` is for all columns, or has a
        value for each, and a number stands for the column at that position.

        Example:
            >>> orders.sort("cust_id", "amount DESC").to_arrow()["amount"].to_pylist()
            [30, 10, 20]
        """
        call = shown_call("sort", cols)
        given = flat(cols)
        if not given:
            raise UserError(
                f"{call} has nothing to sort by\n  to fix: name a column, as in 'a DESC'"
            )
        ways = [ascending] * len(given) if not isinstance(ascending, Sequence) else list(ascending)
        if len(ways) != len(given):
            raise UserError(
                f"{call}: ascending has {len(ways)} values\n"
                f"  found: {len(given)} columns\n  to fix: give one value, or one for each column"
            )
        with self._building(call) as context:
            orders = [
                order_tree(column, self._relation, None if way is None else bool(way))
                for column, way in zip(given, ways, strict=True)
            ]
            rows, orders = rows_with_values(context, self._relation, orders, tables_in(*orders))
            ordered = sort(context, rows, orders)
            if rows is self._relation:
                return self._with(ordered)
            return self._with(Relation(ordered.node, self._relation.attributes))

    def orderBy(
        self,
        *cols: ColumnOrName | int | list[ColumnOrName | int],
        ascending: bool | int | Sequence[bool | int] | None = None,
    ) -> Self:
        """All rows in order: `sort` under SQL's word."""
        return self.sort(*cols, ascending=ascending)

    def sortWithinPartitions(
        self,
        *cols: ColumnOrName | int | list[ColumnOrName | int],
        ascending: bool | int | Sequence[bool | int] | None = None,
    ) -> Self:
        """All rows in order, so those of each partition too."""
        return self.sort(*cols, ascending=ascending)

    def limit(self, num: int) -> Self:
        """At most this many rows: after a sort the first ones, else any.

        Example:
            >>> orders.sort("amount DESC").limit(1).to_arrow().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        check_rows(num, f"limit({num!r})")
        return self._with(limit(self._relation, num))

    def offset(self, num: int) -> Self:
        """All rows but the first ones: after a sort those it puts first, else any."""
        check_rows(num, f"offset({num!r})")
        return self._with(limit(self._relation, None, num))

    def repartition(self, numPartitions: int | ColumnOrName, *cols: ColumnOrName) -> Self:
        """Rows by hash of the keys into this many partitions; without keys, evenly.

        Example:
            >>> orders.repartition(4, "cust_id").count()  # the same rows, now in 4 partitions
            3
        """
        call = shown_call("repartition", [numPartitions, *cols])
        keys, count = cols, numPartitions
        if not isinstance(count, int):
            keys, count = (count, *cols), _REPARTITION_DEFAULT
        attributes = self._attributes(keys, call)
        check_partitions(count)
        return self._with(repartition(self._relation, count, attributes))

    def repartitionByRange(self, numPartitions: int | ColumnOrName, *cols: ColumnOrName) -> Self:
        """Rows by ranges of these columns, which here are sorted too."""
        keys = cols if isinstance(numPartitions, int) else (numPartitions, *cols)
        return self.sort(*keys)

    def repartitionById(self, numPartitions: int, partitionIdCol: ColumnOrName) -> Self:
        """Rows by the values of a column; here by their hash."""
        return self.repartition(numPartitions, partitionIdCol)

    def coalesce(self, numPartitions: int) -> Self:
        """The same rows. Here the sizes of rows decide the number of partitions."""
        check_partitions(numPartitions)
        return self._with(self._relation)

    def hint(self, name: str, *parameters: object) -> Self:
        """The same rows. Here measured sizes decide what hints ask for."""
        del name, parameters
        return self._with(self._relation)

    def withWatermark(self, eventTime: str, delayThreshold: str) -> Self:
        """The same rows: a dataset has an end, and no row is late, as in Spark without a stream."""
        del delayThreshold
        self._attributes([eventTime], shown_call("withWatermark", [eventTime]))
        return self._with(self._relation)

    def durable(self) -> Self:
        """Save the rows here: queries over them start from the saved files.

        Example:
            >>> big = orders.filter("amount > 10").durable()
            >>> big.count(), big.agg(total="sum(amount)").to_arrow()["total"][0].as_py()
            (2, 50)
        """
        return self._with(saved(self._relation))

    def cache(self) -> Self:
        """`durable()`: rows are saved when a query first needs them, and stay."""
        return self.durable()

    def persist(self, storageLevel: object = None) -> Self:
        """`durable()`: rows are saved in the workspace, whatever the level."""
        del storageLevel
        return self.durable()

    def unpersist(self, blocking: bool = False) -> Self:
        """The same: `ws.cleanup(ttl=...)` removes saved rows that nothing needs."""
        del blocking
        return self

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

    def mapInPandas(
        self,
        func: Callable[..., Any],
        schema: Any,  # noqa: ANN401 - Spark's
        barrier: bool = False,
        profile: Any = None,  # noqa: ANN401 - Spark's
    ) -> Self:
        """The rows that a function makes of DataFrames of pandas: all of a task, one by one.

        Work is reused as long as the function's code is the same.

        Example:
            >>> def twice(frames):
            ...     for frame in frames:
            ...         yield frame.assign(amount=frame["amount"] * 2)
            >>> orders.mapInPandas(twice, "cust_id bigint, amount bigint").to_arrow()["amount"][0]
            <pyarrow.Int64Scalar: 20>
        """
        return self._mapped_rows("mapInPandas", func, schema, barrier, profile)

    def mapInArrow(
        self,
        func: Callable[..., Any],
        schema: Any,  # noqa: ANN401 - Spark's
        barrier: bool = False,
        profile: Any = None,  # noqa: ANN401 - Spark's
    ) -> Self:
        """The rows that a function makes of batches: all of a task, one by one.

        Work is reused as long as the function's code is the same.
        """
        return self._mapped_rows("mapInArrow", func, schema, barrier, profile)

    def _mapped_rows(
        self, method: str, func: object, schema: object, barrier: object, profile: object
    ) -> Self:
        name = getattr(func, "__name__", type(func).__name__)
        with self._building(f"{method}({name})") as context:
            if context.udfs is None:
                raise NotNative("functions need Spark", fix="use a workspace with Spark")
            function = context.udfs.of_rows(func, schema, method)
            if not barrier and profile is None:
                return self._with_plan(map_rows(context, self._relation, function))
            assert context.on_spark is not None, "where functions are, Spark is"
            code = context.udfs.on_spark(function, (), barrier, profile)
            reason = "Spark starts tasks together, or with resources of their own"
            return self._with_plan(context.on_spark([("input_0", self._plan)], code, reason))

    def to(self, schema: Any) -> Self:  # noqa: ANN401 - a StructType
        """The columns of a schema, by name, with its types."""
        return self._on_spark("to", schema, reason="Spark matches columns with a schema")

    def zipWithIndex(self, indexColName: str = "index") -> Self:
        """Rows with their numbers, from 0."""
        return self._on_spark("zipWithIndex", indexColName, reason="Spark numbers rows")

    def _attributes(self, columns: Sequence[object], call: str) -> list[Attribute]:
        """The columns of these names."""
        with self._building(call):
            trees = [column_tree(column, self._relation) for column in columns]
            others = [tree for tree in trees if not isinstance(tree, exp.Column)]
            if others:
                raise ExpressionRefused(
                    "this takes columns and no expressions",
                    found=others[0].sql(),
                    fix="calculate it with withColumn before",
                )
            resolved = [resolve(tree, self._relation.attributes) for tree in trees]
            names = [tree.name for tree in resolved if isinstance(tree, exp.Column)]
            check_hashable(self._relation.node, names)
        by_column = {a.column: a for a in self._relation.attributes}
        return [by_column[name] for name in dict.fromkeys(names)]
