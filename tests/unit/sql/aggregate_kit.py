"""Aggregates done as tasks do them: all rows at once, or in parts that travel as Arrow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from millrace.engine.function_install import install_functions
from millrace.sql.aggregates.aggregate_calls import AggregateCall
from millrace.sql.aggregates.aggregate_expressions import AggregateExpression, parse_aggregate
from millrace.sql.expressions import quoted
from millrace.sql.types import SqlType, to_arrow

Named = list[tuple[str, AggregateCall]]


def aggregated(
    table: pa.Table,
    texts: Sequence[str],
    *,
    split: Sequence[int] | None = None,
    grouped: bool = True,
) -> pa.Table:
    """One row for each `g` of the table, in order: g, c0, c1, ...; `split` names a row's task.

    If not grouped, one row for all rows, where g is 0.
    """
    parsed = [
        parse_aggregate(f"c{n}", text, table.schema, call=text) for n, text in enumerate(texts)
    ]
    calls = [call for one in parsed for call in one.calls]
    named = [(f"v{number}", call) for number, call in enumerate(calls)]
    connection = duckdb.connect(config={"threads": 1})
    install_functions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    table = table.append_column("task", pa.array(split or [0] * len(table), pa.int32()))
    connection.register("source", table)
    if split is None:
        values = whole(connection, named, grouped=grouped)
    else:
        values = beside(
            whole(connection, alone(named), grouped=grouped),
            merged(connection, named, max(split, default=0) + 1, grouped=grouped),
        )
    connection.register("given", values)
    return in_types(connection.sql(finished(parsed)), typed((a.name, a.type) for a in parsed))


def alone(named: Named) -> Named:
    return [(name, call) for name, call in named if not call.mergeable]


def typed(columns: Iterable[tuple[str, SqlType]]) -> pa.Schema:
    return pa.schema([("g", pa.int32()), *((name, to_arrow(kind)) for name, kind in columns)])


def whole(connection: duckdb.DuckDBPyConnection, named: Named, *, grouped: bool) -> pa.Table:
    listed = [f"{call.whole()} AS {name}" for name, call in named]
    return connection.sql(grouping("source", listed, grouped=grouped)).to_arrow_table()


def grouping(rows: str, listed: Sequence[str], *, grouped: bool) -> str:
    if grouped:
        return f"SELECT {', '.join(['g', *listed])} FROM {rows} GROUP BY g ORDER BY g"
    always = ["CAST(any_value(0) AS INTEGER) IS NOT NULL AS seen"]
    return f"SELECT CAST(0 AS INTEGER) AS g, {', '.join([*always, *listed])} FROM {rows}"


def merged(
    connection: duckdb.DuckDBPyConnection, named: Named, tasks: int, *, grouped: bool
) -> pa.Table:
    """The parts of each task, as they lie in shuffle files, and then all of them together."""
    some = [(name, call) for name, call in named if call.mergeable]
    columns = [part for name, call in some for part in call.partials(name)]
    listed = [f"{one.sql} AS {quoted(one.name)}" for one in columns]
    schema = typed((one.name, one.type) for one in columns)
    queries = [
        grouping(f"(SELECT * FROM source WHERE task = {task})", listed, grouped=False)
        for task in range(tasks)
    ]
    if grouped:
        queries = [f"SELECT {', '.join(['g', *listed])} FROM source GROUP BY task, g ORDER BY task"]
    sent = [in_types(connection.sql(query), schema) for query in queries]
    connection.register("parts", pa.concat_tables(sent))
    listed = [f"{call.merge(name)} AS {name}" for name, call in some]
    return connection.sql(grouping("parts", listed, grouped=grouped)).to_arrow_table()


def beside(one: pa.Table, two: pa.Table) -> pa.Table:
    assert one["g"].to_pylist() == two["g"].to_pylist()
    for name in two.column_names[1:]:
        one = one if name == "seen" else one.append_column(name, two[name])
    return one


def finished(parsed: Sequence[AggregateExpression]) -> str:
    out, at = ["g"], 0
    for one in parsed:
        out.append(f"{one.finish([f'v{at + n}' for n in range(len(one.calls))])} AS {one.name}")
        at += len(one.calls)
    return f"SELECT {', '.join(out)} FROM given ORDER BY g"


def in_types(found: duckdb.DuckDBPyRelation, schema: pa.Schema) -> pa.Table:
    """The rows as a task hands them on."""
    table = found.to_arrow_table().select(schema.names)
    batches = [batch.cast(schema) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema)


def same(mine: object, other: object, *, error: float = 1e-12) -> bool:
    """Whether two values are equal: NaN equals itself, and doubles differ by an error at most."""
    if isinstance(mine, list) and isinstance(other, list):
        pairs = zip(mine, other, strict=False)
        return len(mine) == len(other) and all(same(a, b, error=error) for a, b in pairs)
    if isinstance(mine, float) and isinstance(other, float):
        if math.isnan(mine) or math.isnan(other):
            return math.isnan(mine) and math.isnan(other)
        return math.isclose(mine, other, rel_tol=error)
    return mine == other


def differences(
    texts: Sequence[str], mine: pa.Table, other: pa.Table, *, error: float = 1e-12
) -> list[str]:
    """What differs between two tables of groups, in type or value; most lists have no order."""
    assert mine["g"].to_pylist() == other["g"].to_pylist()
    out = []
    for number, text in enumerate(texts):
        a, b = mine[f"c{number}"], other[f"c{number}"]
        if loose(a.type) != loose(b.type):
            out.append(f"{text}: type {a.type} and {b.type}")
            continue
        keep_order = "percentile" in text or "order by" in text
        pairs = zip(
            mine["g"].to_pylist(), in_order(a, keep_order), in_order(b, keep_order), strict=True
        )
        wrong = [(g, x, y) for g, x, y in pairs if not same(x, y, error=error)]
        if wrong:
            out.append(f"{text}: (group, one, other) {wrong}")
    return out


def loose(kind: pa.DataType) -> pa.DataType:
    """The type without the promise that a list has no nulls, which shuffle files do not keep."""
    return pa.list_(kind.value_type) if pa.types.is_list(kind) else kind


def in_order(column: pa.ChunkedArray, keep: bool) -> list[object]:  # noqa: FBT001
    values: list[Any] = column.to_pylist()
    if keep or not pa.types.is_list(column.type):
        return values
    return [sorted(one, key=lambda v: (v != v, v)) for one in values]  # noqa: PLR0124 - NaN last
