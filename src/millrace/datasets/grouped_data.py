"""Groups of a dataset's rows, to be aggregated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millrace.datasets.column_arguments import value_tree
from millrace.datasets.dataset_base import building, dataset_with, relation_in
from millrace.errors import UserError
from millrace.plan.builders.build_aggregate import GroupedRows
from millrace.plan.builders.build_select import select
from millrace.plan.builders.operators import named
from millrace.sql.name_checks import named_texts

if TYPE_CHECKING:
    from millrace.datasets.dataset import Dataset


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class GroupedData:
    """Groups of a dataset's rows with equal keys, to be aggregated.

    Example:
        >>> by_customer = orders.group_by("cust_id")
        >>> by_customer.agg(total="sum(amount)").columns
        ['cust_id', 'total']
    """

    _dataset: Dataset
    _keys: tuple[exp.Expression, ...]
    _shown: str

    def __repr__(self) -> str:
        return f"GroupedData[{self._shown}]"

    def agg(self, aggregates: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """One row per group: the keys, then the aggregates: `agg(total="sum(amount)")`.

        Example:
            >>> by_customer = orders.group_by("cust_id")
            >>> by_customer.agg({"total amount": "sum(amount)"}, largest="max(amount)").columns
            ['cust_id', 'total amount', 'largest']
        """
        texts, call = named_texts("agg", aggregates, more)
        if not texts and not self._keys:
            raise UserError("agg() has nothing to calculate\n  to fix: agg(n='count(*)')")
        relation = relation_in(self._dataset)
        with building(self._dataset, call) as context:
            items = [
                named(value_tree(text, relation, f"write agg({name}=...)"), name)
                for name, text in texts.items()
            ]
            grouped = GroupedRows(context, relation, self._keys)
            rewritten = [grouped.rewrite_item(item) for item in items]
            rows = grouped.relation()
            keys = [grouped.rewrite_item(key) for key in self._keys]
            return dataset_with(self._dataset, select(context, rows, [*keys, *rewritten]))
