"""The calls of a dataset that choose and calculate columns, and that filter rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from sqlglot import exp

from millrace.datasets.column_arguments import (
    ColumnOrName,
    column_tree,
    column_trees,
    flat,
    is_column,
    value_tree,
)
from millrace.datasets.dataset_base import DatasetBase, numbered, shown_call, tables_in
from millrace.datasets.spark_methods import NOT_OFFERED
from millrace.errors import UserError
from millrace.plan.builders.build_select import attribute_tree, items_with_columns, select
from millrace.plan.builders.name_resolution import attribute_of, find, names_outside, resolve
from millrace.plan.builders.operators import named
from millrace.plan.relation import Attribute
from millrace.plan.statements.statement import rows_selected, rows_where
from millrace.sql.connect_expressions import name_tree
from millrace.sql.expressions import as_user_error
from millrace.sql.name_checks import (
    check_columns,
    check_named_once,
    check_names_are_text,
    name_list,
    named_texts,
)
from millrace.sql.parser import read
from millrace.sql.sql_mode import folded

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetSelect(DatasetBase):
    """A dataset's columns."""

    def select(self, *cols: ColumnOrName | list[ColumnOrName]) -> Self:
        """Columns, calculated ones too: `select("a", "a + 1 AS b")`, `select(F.col("a") + 1)`.

        Example:
            >>> orders.select("cust_id", "amount * 2 AS double").columns
            ['cust_id', 'double']
            >>> orders.select(orders.cust_id, orders["amount"] + 1).columns
            ['cust_id', '(amount + 1)']
        """
        call = shown_call("select", cols)
        with self._building(call) as context:
            trees = column_trees(cols, self._relation)
            if not trees:
                raise UserError(f"{call} has no columns\n  to fix: name at least one")
            outer = self._outer(call, trees, flat(cols))
            if outer is not None:
                return outer.select(*cols)
            return self._with(rows_selected(context, self._relation, trees, tables_in(*trees)))

    def selectExpr(self, *expr: str | list[str]) -> Self:
        """Columns of Spark SQL, as `select` takes them."""
        with self._building(shown_call("selectExpr", expr)) as context:
            trees = [read(text) for text in flat(expr)]  # type: ignore[arg-type]
            return self._with(rows_selected(context, self._relation, trees, {}))

    def with_columns(
        self, columns: Mapping[str, ColumnOrName] | None = None, /, **more: ColumnOrName
    ) -> Self:
        """The same columns and new ones, or new values for old ones: `with_columns(b="a + 1")`.

        A mapping makes columns of any name; keywords and a mapping can be given together.

        Example:
            >>> orders.with_columns({"twice the amount": "amount * 2"}, half="amount / 2").columns
            ['cust_id', 'amount', 'twice the amount', 'half']
        """
        values, call = named_texts("with_columns", columns, more)
        with self._building(call) as context:
            trees = [(name, value_tree(value, self._relation)) for name, value in values.items()]
            items = items_with_columns(self._relation, trees)
            return self._with(rows_selected(context, self._relation, items, tables_in(*items)))

    def withColumn(self, colName: str, col: ColumnOrName) -> Self:
        """The same columns and a new one, or new values for an old one."""
        return self.with_columns({colName: col})

    def withColumns(self, *colsMap: Mapping[str, ColumnOrName]) -> Self:
        """The same columns and new ones, or new values for old ones."""
        if len(colsMap) != 1:
            raise UserError(
                f"withColumns() takes one mapping\n  found: {len(colsMap)} arguments\n"
                "  to fix: put all columns into one mapping"
            )
        return self.with_columns(colsMap[0])

    def withMetadata(self, columnName: str, metadata: dict[str, Any]) -> Self:
        """The same columns, one with metadata, which `schema` shows as long as it is passed on.

        Example:
            >>> orders.withMetadata("amount", {"unit": "EUR"}).schema["amount"].metadata
            {'unit': 'EUR'}
        """
        call = shown_call("withMetadata", [columnName, metadata])
        if not isinstance(metadata, dict):
            raise UserError(
                f"{call} takes a dict\n  found: {type(metadata).__name__}\n"
                "  to fix: give names and values, as in {'unit': 'EUR'}"
            )
        with self._building(call) as context:
            meant = self._attribute(columnName)
            trees = [
                attribute_tree(replace(a, metadata=json.dumps(metadata)) if a == meant else a)
                for a in self._relation.visible
            ]
            return self._with(select(context, self._relation, trees))

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
        return self._relabelled(call, [new.get(label, label) for label in self._relation.labels])

    def withColumnRenamed(self, existing: str, new: str) -> Self:
        """The same columns; all of this name get another one. Without such a column, as it is."""
        return self.withColumnsRenamed({existing: new})

    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> Self:
        """The same columns, some under other names; names that no column has are passed over."""
        call = shown_call("withColumnsRenamed", [dict(colsMap)])
        check_names_are_text(colsMap.values(), call)
        labels = self._relation.labels
        for old, new in colsMap.items():
            labels = [new if folded(label) == folded(old) else label for label in labels]
        return self._relabelled(call, labels)

    def toDF(self, *cols: str) -> Self:
        """The same columns, all under new names."""
        call = shown_call("toDF", cols)
        check_names_are_text(cols, call)
        if len(cols) != len(self._relation.labels):
            raise UserError(
                f"{call} names {len(cols)} columns\n"
                f"  found: {len(self._relation.labels)} columns\n  to fix: name each of them"
            )
        return self._relabelled(call, list(cols))

    def drop(self, *cols: ColumnOrName) -> Self:
        """All columns but these. A name that no column has is passed over, as in Spark.

        Example:
            >>> orders.drop("amount").columns
            ['cust_id']
        """
        call = shown_call("drop", cols)
        relation = self._relation
        names = name_list([column for column in cols if not is_column(column)])  # type: ignore[misc] # It refuses what is no text.
        dropped = {folded(name) for name in names}
        with self._building(call) as context:
            trees = [column_tree(c, relation) for c in cols if is_column(c)]
            matches = [find(t, relation.visible) for t in trees if isinstance(t, exp.Column)]
            gone = {attribute.column for attribute in matches if attribute is not None}
            kept = [
                attribute_tree(a)
                for a in relation.visible
                if folded(a.label) not in dropped and a.column not in gone
            ]
            if not kept:
                raise UserError("drop() leaves no column\n  to fix: keep at least one")
            return self._with(select(context, relation, kept))

    def filter(self, condition: ColumnOrName) -> Self:
        """Rows for which the condition is true: `filter("amount > 10")`.

        Example:
            >>> orders.filter("amount > 10 AND cust_id = 1").to_arrow().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        call = shown_call("filter", [condition])
        with self._building(call) as context:
            tree = value_tree(condition, self._relation)
            outer = self._outer(call, [tree], [condition])
            if outer is not None:
                return outer.filter(condition)
            return self._with(rows_where(context, self._relation, tree, tables_in(tree)))

    def where(self, condition: ColumnOrName) -> Self:
        """Rows for which the condition is true: `filter` under SQL's word."""
        return self.filter(condition)

    def alias(self, alias: str) -> Self:
        """The same, whose columns can be named through this alias: `F.col("alias.column")`."""
        check_names_are_text([alias], shown_call("alias", [alias]))
        return self._with(self._relation.with_alias(alias))

    def toJSON(self, use_unicode: bool = True) -> Self:
        """Each row as a text of JSON, in the column `value`, as Spark Connect gives it."""
        del use_unicode
        return self.select("to_json(struct(*)) AS value")

    def transform(self, func: Callable[..., Any], *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what the function gives
        """What a function makes of this dataset, for chains of calls."""
        return func(self, *args, **kwargs)

    def colRegex(self, colName: str) -> list[Column]:
        """The columns whose names match a regular expression in backticks."""
        expression = re.compile(colName.strip("`"), re.IGNORECASE)
        return [self[label] for label in self._relation.labels if expression.fullmatch(label)]

    def __getitem__(self, item: Any) -> Any:  # noqa: ANN401 - as Spark's, by the kind of item
        if isinstance(item, str):
            if item != "*":
                with self._building(f"dataset[{item!r}]"):
                    self._check_name(item)
            return self._runner.spark_column(item, self._number)
        if isinstance(item, int) and not isinstance(item, bool):
            return self[_quoted(self._relation.labels[item])]
        if isinstance(item, list | tuple):
            return self.select(*item)
        return self.filter(item)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a column
        if not name.startswith("_") and name in self._relation.labels:
            return self[_quoted(name)]
        reason = NOT_OFFERED.get(name)
        if reason is not None:
            raise AttributeError(
                f"Dataset has no {name}\n  found: {reason[0]}\n  to fix: {reason[1]}"
            )
        raise AttributeError(f"Dataset has neither a method nor a column {name!r}")

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._relation.labels})

    def _check_name(self, name: str) -> None:
        if not any(folded(a.label) == folded(name) for a in self._relation.visible):
            resolve(_whole_name(name), self._relation.visible)

    def _attribute(self, name: str) -> Attribute:
        """The one visible column of this name."""
        same = [a for a in self._relation.visible if folded(a.label) == folded(name)]
        return (
            same[0] if len(same) == 1 else attribute_of(_whole_name(name), self._relation.visible)
        )

    def scalar(self) -> Column:
        """The one value of the rows as a column, null if there is no row.

        Example:
            >>> largest = orders.agg(F.max("amount"))
            >>> orders.where(F.col("amount") == largest.scalar()).to_arrow().to_pylist()
            [{'cust_id': 1, 'amount': 30}]
        """
        return self._runner.subquery_column(self, numbered(self), "scalar")

    def exists(self) -> Column:
        """Whether there is a row, as a column. Columns of the dataset around it can be named.

        Example:
            >>> theirs = orders.where(orders.cust_id == customers.cust_id.outer())
            >>> customers.where(theirs.exists()).count()
            2
        """
        return self._runner.subquery_column(self, numbered(self), "exists")

    def _outer(
        self, call: str, trees: Sequence[exp.Expression], given: Sequence[object]
    ) -> Self | None:
        """This dataset for a call that names columns of another around it; None for other calls.

        They are named through that dataset or its alias; texts name columns of their own rows.
        """
        columns = [tree for tree, what in zip(trees, given, strict=True) if is_column(what)]
        if not any(names_outside(tree, self._relation.attributes) for tree in columns):
            return None
        from millrace.datasets.correlated_dataset import correlated  # noqa: PLC0415 - a dataset

        try:
            with as_user_error(call):
                for tree in columns:
                    resolve(tree, self._relation.attributes)
        except UserError as reason:
            return correlated(self, reason)  # type: ignore[return-value, arg-type] # A dataset.
        return None

    def _relabelled(self, call: str, labels: list[str]) -> Self:
        with self._building(call) as context:
            pairs = zip(self._relation.visible, labels, strict=True)
            trees: list[exp.Expression] = [
                attribute_tree(a) if a.label == label else named(attribute_tree(a), label)
                for a, label in pairs
            ]
            return self._with(select(context, self._relation, trees))


def _whole_name(name: str) -> exp.Column:
    """The column of a name, without the fields behind it."""
    tree = name_tree(name)
    while isinstance(tree, exp.Dot):
        tree = tree.this
    assert isinstance(tree, exp.Column)
    return tree


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
