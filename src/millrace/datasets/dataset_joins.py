"""The joins of datasets: by equal keys, as-of and by intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from sqlglot import exp

from millrace.datasets.column_arguments import ColumnOrName, is_column, value_tree
from millrace.datasets.dataset_base import DatasetBase, lateral_of, relation_of_other, tables_in
from millrace.datasets.dataset_sets import DatasetSets
from millrace.errors import UserError
from millrace.plan.builders.build_join import Names, join_kind, plan_join
from millrace.plan.builders.build_ordered_joins import plan_asof, plan_interval
from millrace.plan.builders.build_relation_join import join_on, join_using
from millrace.plan.builders.operators import all_of
from millrace.plan.nodes.node import Node
from millrace.plan.statements.statement import rows_joined, rows_joined_laterally
from millrace.sql.name_checks import name_list
from millrace.sql.ordered_offsets import OffsetValue
from millrace.sql.sql_mode import in_mode
from millrace.sql.text_limits import limits_of

_NEAREST_MAX: Final = 100_000
"""The most results of a nearest-by join for each row, as in Spark."""


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

    def lateralJoin(
        self, other: DatasetBase, on: ColumnOrName | None = None, how: str | None = None
    ) -> Self:
        """Each row with the rows of a dataset that names its columns, as SQL's LATERAL.

        Example:
            >>> theirs = orders.where(orders.cust_id == customers.cust_id.outer())
            >>> best = theirs.agg(F.max("amount").alias("best"))
            >>> customers.lateralJoin(best).sort("cust_id").to_arrow()["best"].to_pylist()
            [30, 20]
        """
        call = f"lateralJoin(on={on!r}, how={how!r})"
        condition = None if on is None else value_tree(on, self._relation)
        return self._joined_laterally(call, lateral_of(other, call), how, condition)

    def nearestByJoin(
        self,
        other: DatasetBase,
        rankingExpression: ColumnOrName,
        numResults: int,
        mode: str,
        direction: str,
        *,
        joinType: str = "inner",
    ) -> Self:
        """Each row with the rows of the other side that rank first for it.

        `direction` is "distance", smallest first, or "similarity", largest first. Both modes,
        "exact" and "approx", compare all pairs of rows. Rows without a rank are left out.

        Example:
            >>> shops = ws.from_arrow(pa.table({"shop": ["a", "b"], "at": [10, 40]}))
            >>> gap = F.abs(orders.amount - shops["at"])
            >>> nearest = orders.nearestByJoin(shops, gap, 1, "exact", "distance")
            >>> nearest.sort("amount").to_arrow()["shop"].to_pylist()
            ['a', 'a', 'b']
        """
        call = f"nearestByJoin({numResults!r}, {mode!r}, {direction!r}, joinType={joinType!r})"
        one_of(call, "mode", mode, ("approx", "exact"))
        one_of(call, "direction", direction, ("distance", "similarity"))
        one_of(call, "joinType", joinType.replace("_", ""), ("inner", "left", "leftouter"))
        if not 1 <= numResults <= _NEAREST_MAX:
            raise UserError(
                f"{call} takes 1 to {_NEAREST_MAX} results\n  found: {numResults}\n"
                "  to fix: give another number"
            )
        rank = value_tree(rankingExpression, self._relation)
        largest_first = direction == "similarity"
        order = exp.Ordered(this=rank.copy(), desc=largest_first, nulls_first=not largest_first)
        relation_of_other(other, call)  # Its rows are its own.
        lateral = lateral_of(other, call)
        query = lateral.this.this
        is_ranked = exp.Not(this=exp.Is(this=exp.Paren(this=rank), expression=exp.Null()))
        query.set("where", exp.Where(this=is_ranked))
        query.set("order", exp.Order(expressions=[order]))
        query.set("limit", exp.Limit(expression=exp.Literal.number(numResults)))
        return self._joined_laterally(call, lateral, joinType, None)

    def _joined_laterally(
        self, call: str, lateral: exp.Lateral, how: str | None, on: exp.Expression | None
    ) -> Self:
        """Each row with the rows of a query that names its columns."""
        kind = join_kind("inner" if how is None else how, call)
        if kind not in ("inner", "cross", "left"):
            raise UserError(
                f"{call} is no lateral join\n  found: {how}\n  to fix: use inner or left"
            )
        with self._building(call) as context:
            tables = tables_in(*([lateral] if on is None else [lateral, on]))
            rows = rows_joined_laterally(context, self._relation, lateral, kind, on, tables)
            return self._with(rows)

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
                tables = {} if condition is None else tables_in(condition)
                joined = rows_joined(context, (self._relation, right), kind, condition, tables)
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


def one_of(call: str, name: str, given: str, known: Sequence[str]) -> None:
    """Refuse a word that is none of those that a parameter has."""
    if given not in known:
        raise UserError(
            f"{call}: {name} is another word\n  found: {given!r}\n  to fix: use {', '.join(known)}"
        )
