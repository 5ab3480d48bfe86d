"""The joins of datasets: by equal keys, as-of and by intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from millrace.dataset_results import DatasetResults, plan_of
from millrace.errors import UserError
from millrace.plan.builders.build_join import Names, plan_join
from millrace.plan.builders.build_ordered_joins import plan_asof, plan_interval
from millrace.plan.nodes.node import Node
from millrace.plan.planner.plan_depth import check_plan_size
from millrace.sql.name_checks import check_distinguishable
from millrace.sql.ordered_offsets import OffsetValue
from millrace.sql.text_limits import limits_of


@dataclass(frozen=True, slots=True, repr=False)
class DatasetJoins(DatasetResults):
    """The calls of a dataset that join it with another one."""

    def join(
        self,
        other: DatasetResults,
        on: str | Sequence[str] | None = None,
        how: str = "inner",
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        condition: str | None = None,
    ) -> Self:
        """Pairs of rows whose keys are equal and for which the condition, if any, is true.

        `on` names keys that both sides have; they come first in the result, once. `left_on` and
        `right_on` name keys that differ, and keep all columns. A column of the right side whose
        name exists on the left gets the ending `_right`, in the condition too. `how` is as in
        PySpark: inner, left, right, full, semi, anti, cross.

        Example:
            >>> orders.join(customers, on="cust_id").columns
            ['cust_id', 'amount', 'nation']
            >>> orders.join(customers, on="cust_id", how="left", condition="nation = 'fr'").count()
            3
        """
        with limits_of(self._runner.config):
            plan = plan_join(
                self._plan,
                plan_of_other(other, "join"),
                on=on,
                left_on=left_on,
                right_on=right_on,
                how=how,
                condition=condition,
            )
        return self._with(plan)

    def join_asof(
        self,
        other: DatasetResults,
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
            >>> priced.sort("at").collect()["price"].to_pylist()
            [99, 100]
        """
        plan = plan_asof(
            self._plan,
            plan_of_other(other, "join_asof"),
            on=(on, left_on, right_on),
            by=(by, left_by, right_by),
            direction=direction,
            tolerance=tolerance,
            how=how,
        )
        return self._with(plan)

    def join_interval(
        self,
        other: DatasetResults,
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
            >>> soon.collect()["paid_at"].to_pylist()
            [105]
        """
        plan = plan_interval(
            self._plan,
            plan_of_other(other, "join_interval"),
            on=(None, left_on, right_on),
            by=(by, left_by, right_by),
            lower=lower,
            upper=upper,
            how=how,
        )
        return self._with(plan)

    def _with(self, plan: Node) -> Self:
        check_plan_size(plan, self._runner.config)
        check_distinguishable(plan.schema.names)
        return type(self)(plan, self._runner)


def plan_of_other(other: object, call: str) -> Node:
    """The plan of a dataset that was given to a call, where it is one."""
    if isinstance(other, DatasetResults):
        return plan_of(other)
    raise UserError(
        f"{call} takes a dataset\n  found: {type(other).__name__}\n"
        "  to fix: make one with ws.from_arrow(table), ws.from_spark(frame) or ws.read_parquet(..)"
    )
