"""The calls of a dataset that choose and calculate columns, and that filter rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from sqlglot import exp

from millrace.datasets.column_arguments import column_trees, value_tree
from millrace.datasets.dataset_base import DatasetBase, shown_call
from millrace.errors import UserError
from millrace.plan.builders.build_select import attribute_tree, select, where, with_columns
from millrace.plan.builders.operators import named
from millrace.sql.name_checks import (
    check_columns,
    check_named_once,
    check_names_are_text,
    name_list,
    named_texts,
)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetSelect(DatasetBase):
    """A dataset's columns."""

    def select(self, *columns: str) -> Self:
        """Columns, calculated ones too: `select("a", "a + 1 AS b")`.

        Example:
            >>> orders.select("cust_id", "amount * 2 AS double").columns
            ['cust_id', 'double']
        """
        call = shown_call("select", columns)
        with self._building(call) as context:
            trees = column_trees(columns, self._relation)
            if not trees:
                raise UserError(f"{call} has no columns\n  to fix: name at least one")
            return self._with(select(context, self._relation, trees))

    def with_columns(self, columns: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """The same columns and new ones, or new values for old ones: `with_columns(b="a + 1")`.

        A mapping makes columns of any name; keywords and a mapping can be given together.

        Example:
            >>> orders.with_columns({"twice the amount": "amount * 2"}, half="amount / 2").columns
            ['cust_id', 'amount', 'twice the amount', 'half']
        """
        texts, call = named_texts("with_columns", columns, more)
        with self._building(call) as context:
            trees = [(name, value_tree(text, self._relation)) for name, text in texts.items()]
            return self._with(with_columns(context, self._relation, trees))

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """The same columns under other names: `rename(old="new")`, `rename({"old": "a new one"})`.

        Example:
            >>> orders.rename({"amount": "amount in EUR"}, cust_id="customer").columns
            ['customer', 'amount in EUR']
        """
        new, call = named_texts("rename", names, more)
        check_columns(self._relation.schema, new, call)
        check_names_are_text(new.values(), call)
        check_named_once([(new.get(label, label), None) for label in self._relation.labels], call)
        with self._building(call) as context:
            trees: list[exp.Expression] = [
                named(attribute_tree(a), new[a.label]) if a.label in new else attribute_tree(a)
                for a in self._relation.visible
            ]
            return self._with(select(context, self._relation, trees))

    def drop(self, *columns: str) -> Self:
        """All columns but these. A name that no column has is passed over, as in Spark.

        Example:
            >>> orders.drop("amount").columns
            ['cust_id']
        """
        call = shown_call("drop", columns)
        dropped = {name.lower() for name in name_list(columns)}
        kept = [a for a in self._relation.visible if a.label.lower() not in dropped]
        if not kept:
            raise UserError("drop() leaves no column\n  to fix: keep at least one")
        with self._building(call) as context:
            return self._with(select(context, self._relation, [attribute_tree(a) for a in kept]))

    def filter(self, condition: str) -> Self:
        """Rows for which the condition is true: `filter("amount > 10")`.

        Example:
            >>> orders.filter("amount > 10 AND cust_id = 1").to_arrow().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        with self._building(shown_call("filter", [condition])) as context:
            return self._with(where(context, self._relation, value_tree(condition, self._relation)))
