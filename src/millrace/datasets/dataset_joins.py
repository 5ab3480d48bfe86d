"""The joins of datasets: by equal keys, as-of and by intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from millrace.datasets.dataset_base import DatasetBase, relation_of_other
from millrace.datasets.dataset_rows import DatasetRows
from millrace.errors import UserError
from millrace.plan.builders.build_join import Names, join_kind, plan_join
from millrace.plan.builders.build_ordered_joins import plan_asof, plan_interval
from millrace.plan.builders.build_relation_join import join_using
from millrace.plan.nodes.node import Node
from millrace.sql.name_checks import name_list
from millrace.sql.ordered_offsets import OffsetValue
from millrace.sql.text_limits import limits_of


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetJoins(DatasetRows):
    """The calls of a dataset that join it with another one."""

    def join(
        self,
        other: DatasetBase,
        on: str | Sequence[str] | None = None,
        how: str = "inner",
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        condition: str | None = None,
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
        if on is not None and left_on is None and right_on is None and condition is None:
            call = f"join(on={on!r}, how={how!r})"
            kind, right = join_kind(how, call), relation_of_other(other, "join")
            if kind == "cross":
                raise UserError(f'{call}: a cross join has no keys\n  to fix: use how="inner"')
            with self._building(call) as context:
                return self._with(join_using(context, self._relation, right, kind, name_list(on)))
        with limits_of(self._runner.config):
            plan = plan_join(
                self._plan,
                self._other_plan(other, "join"),
                on=on,
                left_on=left_on,
                right_on=right_on,
                how=how,
                condition=condition,
            )
        return self._with_plan(plan)

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
