"""The joins of datasets: by equal keys, as-of and by intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from millrace.datasets.column_arguments import ColumnOrName, is_column, value_tree
from millrace.datasets.dataset_base import DatasetBase, relation_of_other
from millrace.datasets.dataset_sets import DatasetSets
from millrace.plan.builders.build_join import Names, join_kind, plan_join
from millrace.plan.builders.build_ordered_joins import plan_asof, plan_interval
from millrace.plan.builders.build_relation_join import join_on, join_using
from millrace.plan.builders.operators import all_of
from millrace.plan.nodes.node import Node
from millrace.sql.name_checks import name_list
from millrace.sql.ordered_offsets import OffsetValue
from millrace.sql.sql_mode import in_mode
from millrace.sql.text_limits import limits_of


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetJoins(DatasetSets):
    """The calls of a dataset that join it with another one."""

    def join(
        self,
        other: DatasetBase,
        on: ColumnOrName | Sequence[ColumnOrName] | None = None,
        how: str | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        condition: ColumnOrName | None = None,
    ) -> Self:
        """Pairs of rows whose keys are equal and for which the condition, if any, is true.

        `on` names keys that both sides have; they come first in the result, once. All other
        columns of both sides follow, as in Spark: also two of one name. `left_on` and `right_on`
        name keys that differ, and keep all columns; with them or with a condition a column of the
        right side whose name exists on the left gets the ending `_right`, in the condition too.
        `how` is as in PySpark: inner, left, right, full, semi, anti, cross.

        Example:
            >>> orders.join(customers, on="cust_id").columns
            ['cust_id', 'amount', 'nation']
            >>> orders.join(customers, on="cust_id", how="left", condition="nation = 'fr'").count()
            3
        """
        if left_on is None and right_on is None and not isinstance(condition, str):
            return self._joined_as_spark(other, condition if on is None else on, how)
        with limits_of(self._runner.config), in_mode(self._mode):
            plan = plan_join(
                self._plan,
                self._other_plan(other, "join"),
                on=on,  # type: ignore[arg-type] # Columns are refused there.
                left_on=left_on,
                right_on=right_on,
                how=how or "inner",
                condition=condition,  # type: ignore[arg-type] # As above.
            )
        return self._with_plan(plan)

    def crossJoin(self, other: DatasetBase) -> Self:
        """All pairs of rows."""
        with self._building("crossJoin()") as context:
            right = relation_of_other(other, "crossJoin")
            return self._with(join_on(context, self._relation, right, "cross", None))

    def _joined_as_spark(self, other: object, on: object, how: str | None) -> Self:
        """A join on names that both sides have, or on conditions; without them, all pairs."""
        call = f"join(on={on!r}, how={how!r})"
        right = relation_of_other(other, "join")
        kind = join_kind("inner" if how is None else how, call)
        keys = list(on) if isinstance(on, list | tuple) else [] if on is None else [on]
        if any(not isinstance(key, str) and not is_column(key) for key in keys):
            name_list(on)  # type: ignore[arg-type] # It refuses what is no text.
        if kind == "cross" and keys:
            kind = "inner"
        with self._building(call) as context:
            names = [key for key in keys if isinstance(key, str)]
            if keys and len(names) == len(keys):
                joined = join_using(context, self._relation, right, kind, names)
            else:
                both = join_on(context, self._relation, right, "cross", None)
                trees = [value_tree(key, both) for key in keys]
                condition = all_of(trees) if trees else None
                joined = join_on(context, self._relation, right, kind, condition)
            return self._with(joined)

    def join_asof(
        self,
        other: DatasetBase,
        on: str | None = None,
        *,
        left_on: str | None = None,
        right_on: str | None = None,
        by: Names = None,
        left_by: Names = None,
        right_by: Names = None,
        direction: str = "backward",
        tolerance: OffsetValue | None = None,
        how: str = "left",
    ) -> Self:
        """Each row with the row of the other side that is nearest in `on`, and equal in `by`.

        `on` is a number, date or timestamp. `direction`: "backward" is the last row at or before,
        "forward" the first at or after, "nearest" the nearer of the two, and the earlier one if
        both are equally near. `tolerance` is the largest distance: a number, or for times an
        interval such as "10 seconds". The last one of equal rows is taken. `how` is left or inner.

        Example:
            >>> trades = ws.from_arrow(pa.table({"at": [10, 30]}))
            >>> quotes = ws.from_arrow(pa.table({"at": [5, 20], "price": [99, 100]}))
            >>> priced = trades.join_asof(quotes, on="at", tolerance=10)
            >>> priced.sort("at").to_arrow()["price"].to_pylist()
            [99, 100]
        """
        plan = plan_asof(
            self._plan,
            self._other_plan(other, "join_asof"),
            on=(on, left_on, right_on),
            by=(by, left_by, right_by),
            direction=direction,
            tolerance=tolerance,
            how=how,
        )
        return self._with_plan(plan)

    def join_interval(
        self,
        other: DatasetBase,
        *,
        left_on: str,
        right_on: str,
        lower: OffsetValue,
        upper: OffsetValue,
        by: Names = None,
        left_by: Names = None,
        right_by: Names = None,
        how: str = "inner",
    ) -> Self:
        """Pairs of rows, equal in `by`: `right_on` is between `left_on + lower` and `+ upper`.

        Both ends are included. They are numbers or, for dates and timestamps, intervals such as
        "-10 seconds". `how` is inner or left.

        Example:
            >>> visits = ws.from_arrow(pa.table({"who": ["a"], "at": [100]}))
            >>> sales = ws.from_arrow(pa.table({"who": ["a", "a"], "paid_at": [105, 500]}))
            >>> soon = visits.join_interval(
            ...     sales, left_on="at", right_on="paid_at", lower=0, upper=60, by="who"
            ... )
            >>> soon.to_arrow()["paid_at"].to_pylist()
            [105]
        """
        plan = plan_interval(
            self._plan,
            self._other_plan(other, "join_interval"),
            on=(None, left_on, right_on),
            by=(by, left_by, right_by),
            lower=lower,
            upper=upper,
            how=how,
        )
        return self._with_plan(plan)

    def _other_plan(self, other: object, call: str) -> Node:
        return relation_of_other(other, call).output()
