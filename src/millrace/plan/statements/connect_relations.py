"""Builds the relation of a Spark Connect DataFrame from its unresolved plan.

Sources are read natively, and joins, aggregates and the like are ours. A part of the plan that is
not known here stays Spark's: Spark computes it, and its rows are saved. Invariant: columns and
their order are those of the DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import pyarrow as pa
from sqlglot import exp

from millrace.plan.builders.build_context import BuildContext
from millrace.plan.builders.build_relation_join import join_on, join_using
from millrace.plan.builders.build_rows import distinct, limit
from millrace.plan.builders.build_select import (
    attribute_tree,
    expand_stars,
    select,
    where,
    with_columns,
)
from millrace.plan.builders.build_set_rows import row_differences, union_all, union_by_name
from millrace.plan.builders.build_sort import sort
from millrace.plan.builders.name_resolution import attribute_of, find, resolve
from millrace.plan.builders.reshape.build_pivot import Pivot, aggregated, pivoted
from millrace.plan.builders.reshape.build_unpivot import UnpivotedColumns, unpivoted
from millrace.plan.builders.reshape.grouping_sets import cube_sets, rollup_sets
from millrace.plan.builders.reshape.missing_values import (
    Fill,
    filled,
    replaced,
    without_missing,
)
from millrace.plan.builders.reshape.pivot_values import found_values, given_value, values_query
from millrace.plan.builders.user_code.build_row_functions import map_groups, map_pairs, map_rows
from millrace.plan.nodes.drop_duplicates import DropDuplicates
from millrace.plan.nodes.join import JoinKind
from millrace.plan.nodes.user_code.user_function import UserFunction
from millrace.plan.relation import Relation, relation_of
from millrace.sql.connect_expressions import expression_tree, name_parts, name_tree, order_tree
from millrace.sql.connect_literals import literal_tree
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import NotNative

_JOINS: Final[dict[int, JoinKind]] = {
    1: "inner",
    2: "full",
    3: "left",
    4: "right",
    5: "anti",
    6: "semi",
    7: "cross",
}
_INTERSECT: Final = 1
_UNION: Final = 2


class ConnectSources(Protocol):
    """The rows that a plan begins with."""

    def files(self, form: str, paths: Sequence[str], options: Mapping[str, str]) -> Relation | None:
        """Files that are read natively; None if Spark has to read them."""

    def rows(self, table: pa.Table) -> Relation:
        """Rows of the client."""

    def statement(
        self, text: str, arguments: Mapping[str, exp.Expression] | Sequence[exp.Expression]
    ) -> Relation:
        """A query over tables of Spark's catalog."""

    def rows_now(self, relation: Relation) -> pa.Table:
        """The rows of a query that runs now."""

    def on_spark(self, message: Any, reason: str) -> Relation:  # noqa: ANN401 - of Spark Connect
        """A part of the plan that Spark computes."""


class ConnectPlan:
    """Builds relations from messages of Spark Connect."""

    def __init__(self, context: BuildContext, sources: ConnectSources) -> None:
        self._context, self._sources = context, sources
        self._builders: dict[str, Callable[[Any], Relation]] = {
            "read": self._read,
            "project": self._project,
            "filter": self._filter,
            "join": self._join,
            "set_op": self._set_operation,
            "sort": self._sort,
            "limit": self._limit,
            "aggregate": self._aggregate,
            "sql": self._sql,
            "local_relation": self._local,
            "deduplicate": self._deduplicate,
            "range": self._range,
            "subquery_alias": self._alias,
            "repartition": self._input,
            "repartition_by_expression": self._input,
            "hint": self._input,
            "to_df": self._to_df,
            "with_columns_renamed": self._renamed,
            "drop": self._drop,
            "with_columns": self._with_columns,
            "map_partitions": self._map_partitions,
            "group_map": self._group_map,
            "co_group_map": self._cogroup_map,
            "offset": self._offset,
            "unpivot": self._unpivot,
            "fill_na": self._fill,
            "drop_na": self._drop_missing,
            "replace": self._replace,
        }

    def relation(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        """The rows of a message, which can be named through its plan's number."""
        kind = message.WhichOneof("rel_type")
        build = self._builders.get(kind)
        if build is None:
            relation = self._sources.on_spark(message, f"{kind} is not built here")
        else:
            try:
                relation = build(getattr(message, kind))
            except NotNative as refused:
                relation = self._sources.on_spark(message, refused.what)
        common = message.common
        return relation.with_origin(common.plan_id) if common.HasField("plan_id") else relation

    def _read(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        if message.is_streaming:
            raise NotNative("a stream is not read here", fix="")
        if message.WhichOneof("read_type") == "named_table":
            name = message.named_table.unparsed_identifier
            if message.named_table.options:
                raise NotNative("a table with options", found=name, fix="")
            return self._sources.statement(f"SELECT * FROM {name}", ()).with_alias(
                name_parts(name)[-1]
            )
        source = message.data_source
        if source.schema or source.predicates:
            raise NotNative("files with a schema of the reader's", fix="")
        paths = list(source.paths)
        if not paths and "path" in source.options:
            paths = [source.options["path"]]
        files = self._sources.files(source.format or "parquet", paths, dict(source.options))
        if files is None:
            raise NotNative(f"{source.format} files are read by Spark", fix="")
        return files

    def _project(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        return select(self._context, child, [expression_tree(e) for e in message.expressions])

    def _filter(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        return where(self._context, self._input(message), expression_tree(message.condition))

    def _join(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        if message.HasField("join_data_type"):
            raise NotNative("a join of typed rows", fix="")
        left, right = self.relation(message.left), self.relation(message.right)
        how = _JOINS[message.join_type]
        if message.using_columns:
            return join_using(self._context, left, right, how, list(message.using_columns))
        tree = (
            expression_tree(message.join_condition) if message.HasField("join_condition") else None
        )
        return join_on(self._context, left, right, how, tree)

    def _set_operation(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        left, right = self.relation(message.left_input), self.relation(message.right_input)
        if message.by_name and message.set_op_type != _UNION:
            raise NotNative("a set operation by name", fix="")
        if message.set_op_type == _UNION:
            if message.by_name:
                missing = message.allow_missing_columns
                whole = union_by_name(self._context, left, right, missing=missing)
            else:
                whole = union_all(self._context, [left.only_visible(), right.only_visible()])
            return whole if message.is_all else distinct(self._context, whole)
        return row_differences(
            self._context,
            left.only_visible(),
            right.only_visible(),
            matching=message.set_op_type == _INTERSECT,
            every=message.is_all,
        )

    def _sort(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        if message.HasField("is_global") and not message.is_global:
            return child  # An order inside partitions is no order of the rows.
        return sort(self._context, child, [order_tree(order) for order in message.order])

    def _offset(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        return limit(self._input(message), None, message.offset)

    def _unpivot(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        kept = expand_stars(child, [expression_tree(tree) for tree in message.ids])
        if message.HasField("values"):
            given = expand_stars(child, [expression_tree(t) for t in message.values.values])
        else:
            passed = {resolve(tree, child.attributes).name for tree in kept}
            given = [attribute_tree(a) for a in child.visible if a.column not in passed]
        if not given:
            raise NotNative("unpivot without values", fix="")
        groups = [
            UnpivotedColumns(select(self._context, child, [tree]).labels[0], (_bare(tree),))
            for tree in given
        ]
        names = (message.variable_column_name, [message.value_column_name])
        return unpivoted(self._context, child, kept, groups, *names, nulls=True)

    def _fill(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        labels = _labels(child, message.cols)
        values = [value for value in map(_value, message.values) if value is not None]
        exact = len(values) > 1
        pairs = zip(labels, values if exact else values * len(labels), strict=True)
        return filled(self._context, child, dict(pairs), exact=exact)

    def _drop_missing(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        least = message.min_non_nulls if message.HasField("min_non_nulls") else None
        return without_missing(self._context, child, _labels(child, message.cols), least)

    def _replace(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        pairs = [
            (old, _value(pair.new_value))
            for pair in message.replacements
            if (old := _value(pair.old_value)) is not None
        ]
        return replaced(self._context, child, pairs, _labels(child, message.cols))

    def _limit(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        return limit(child, message.limit)

    def _aggregate(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        keys = [expression_tree(key) for key in message.grouping_expressions]
        items = [expression_tree(value) for value in message.aggregate_expressions]
        match message.group_type:
            case 1:
                return aggregated(self._context, child, keys, items)
            case 2:
                return aggregated(self._context, child, keys, items, rollup_sets(keys))
            case 3:
                return aggregated(self._context, child, keys, items, cube_sets(keys))
            case 4:
                return self._pivoted(child, keys, items, message.pivot)
            case 5:
                sets = [
                    [expression_tree(key) for key in part.grouping_set]
                    for part in message.grouping_sets
                ]
                return aggregated(self._context, child, keys, items, sets)
            case _:
                raise NotNative("groups of another kind", fix="")

    def _pivoted(
        self,
        child: Relation,
        keys: Sequence[exp.Expression],
        items: Sequence[exp.Expression],
        message: Any,  # noqa: ANN401 - as above
    ) -> Relation:
        column = expression_tree(message.col)
        column = column.this if isinstance(column, exp.Alias) else column
        if message.values:
            values = tuple(given_value(literal_tree(value)) for value in message.values)
        else:
            query = values_query(self._context, child, column)
            values = found_values(self._sources.rows_now(query))
        return pivoted(self._context, child, keys, Pivot((column,), values), items)

    def _deduplicate(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        if message.within_watermark:
            raise NotNative("duplicates within a watermark", fix="")
        child = self._input(message)
        if message.all_columns_as_keys or not message.column_names:
            return distinct(self._context, child.only_visible())
        keys = [attribute_of(_name(name), child.attributes) for name in message.column_names]
        return child.over(DropDuplicates(child.node, tuple(key.column for key in keys)))

    def _local(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        if not message.HasField("data"):
            raise NotNative("no rows", fix="")
        with pa.ipc.open_stream(message.data) as stream:
            return self._sources.rows(stream.read_all())

    def _sql(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        if message.args or message.named_arguments:
            named = {key: literal_tree(value) for key, value in message.args.items()}
            named |= {k: expression_tree(value) for k, value in message.named_arguments.items()}
            return self._sources.statement(message.query, named)
        listed = [literal_tree(value) for value in message.pos_args]
        listed += [expression_tree(value) for value in message.pos_arguments]
        return self._sources.statement(message.query, listed)

    def _range(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        bounds = f"{message.start}, {message.end}, {message.step}"
        return self._sources.statement(f"SELECT * FROM range({bounds})", ())

    def _alias(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        return self._input(message).with_alias(message.alias)

    def _to_df(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message).only_visible()
        if len(message.column_names) != len(child.attributes):
            raise NotNative("toDF with another number of columns", fix="")
        pairs = zip(child.attributes, message.column_names, strict=True)
        return replace(child, attributes=tuple(replace(a, label=label) for a, label in pairs))

    def _renamed(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        new = {folded(old): label for old, label in message.rename_columns_map.items()}
        new |= {folded(rename.col_name): rename.new_col_name for rename in message.renames}
        attributes = tuple(
            a if a.hidden else replace(a, label=new.get(folded(a.label), a.label))
            for a in child.attributes
        )
        return replace(child, attributes=attributes)

    def _drop(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        child = self._input(message)
        trees = [expression_tree(column) for column in message.columns]
        dropped = [find(tree, child.attributes) for tree in trees if isinstance(tree, exp.Column)]
        names = {a.column for a in dropped if a is not None}
        labels = {folded(name) for name in message.column_names}
        kept = [a for a in child.visible if a.column not in names and folded(a.label) not in labels]
        if len(kept) == len(child.visible):
            return child
        return select(self._context, child, [attribute_tree(a) for a in kept])

    def _with_columns(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        columns = [(alias.name[0], expression_tree(alias.expr)) for alias in message.aliases]
        return with_columns(self._context, self._input(message), columns)

    def _map_partitions(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        if message.is_barrier or message.HasField("profile_id"):
            raise NotNative("Spark starts tasks together, or with resources of their own", fix="")
        return relation_of(map_rows(self._context, self._input(message), self._function(message)))

    def _group_map(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        if message.sorting_expressions or message.HasField("is_map_groups_with_state"):
            raise NotNative("groups with a state", fix="")
        groups = self._input(message), [*map(expression_tree, message.grouping_expressions)]
        return relation_of(map_groups(self._context, groups, self._function(message)))

    def _cogroup_map(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        ours = [expression_tree(key) for key in message.input_grouping_expressions]
        theirs = [expression_tree(key) for key in message.other_grouping_expressions]
        left, right = (self._input(message), ours), (self.relation(message.other), theirs)
        return relation_of(map_pairs(self._context, left, right, self._function(message)))

    def _function(self, message: Any) -> UserFunction:  # noqa: ANN401 - as above
        if self._context.udfs is None or message.func.WhichOneof("function") != "python_udf":
            raise NotNative("a function that is no Python", fix="")
        return self._context.udfs.of_message(message.func)

    def _input(self, message: Any) -> Relation:  # noqa: ANN401 - as above
        return self.relation(message.input)


def _name(name: str) -> exp.Column:
    tree = name_tree(f"`{name.replace('`', '``')}`")
    assert isinstance(tree, exp.Column)
    return tree


def _bare(tree: exp.Expression) -> exp.Expression:
    return tree.this if isinstance(tree, exp.Alias) else tree


def _labels(child: Relation, names: Sequence[str]) -> list[str]:
    """The labels of these columns in lower case; of all, if none is named."""
    labels = [folded(label) for label in child.labels]
    wanted = [folded(name) for name in names]
    if any(labels.count(name) != 1 for name in wanted):
        raise NotNative("a column that is not there once", found=", ".join(names), fix="")
    return wanted or labels


def _value(message: Any) -> Fill | None:  # noqa: ANN401 - as above
    """The value of a literal; null is None."""
    kind = message.WhichOneof("literal_type")
    if kind == "null":
        return None
    if kind not in ("boolean", "long", "integer", "double", "string"):
        raise NotNative(f"a literal of type {kind} among replaced values", fix="")
    value: Fill = getattr(message, kind)
    return value
