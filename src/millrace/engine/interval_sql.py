"""Interval joins in DuckDB's SQL.

A join by keys alone would compare all pairs of a key's rows, which never ends for keys with many
rows. So values are cut into buckets as wide as the interval, and rows are joined by key and bucket:
a left row by the bucket of its low end, a right row by its own bucket and by the one before.
"""

from __future__ import annotations

from millrace.engine.ordered_join_sql import (
    Buckets,
    comparable,
    equal_keys,
    free_names,
    result_columns,
    shifted_value,
)
from millrace.plan.nodes.ordered_joins import IntervalJoin
from millrace.sql.typed_sql import quoted


def interval_query(node: IntervalJoin, left: str, right: str) -> str:
    """The query of an interval join over the names of its children's rows."""
    at, low, high, bucket, copy = free_names(node, "at", "low", "high", "bucket", "copy")
    kind = node.on_type
    left_value = comparable(quoted(node.left_on), kind)
    right_value = comparable(quoted(node.right_on), kind)
    lower = shifted_value(left_value, kind, node.lower, low=True)
    upper = shifted_value(left_value, kind, node.upper, low=False)
    ours = f"SELECT *, {lower} AS {low}, {upper} AS {high} FROM {left}"
    theirs = f"SELECT *, {right_value} AS {at} FROM {right}"
    on = [*equal_keys(node, "l", "r"), f"r.{at} >= l.{low}", f"r.{at} <= l.{high}"]
    buckets = Buckets.of(node.lower, node.upper, kind)
    if buckets is not None:
        on.append(f"l.{bucket} = r.{bucket}")
        ours = f"SELECT *, {buckets.of_value(low)} AS {bucket} FROM ({ours})"
        theirs = f"SELECT *, {buckets.of_value(at)} AS {bucket} FROM ({theirs})"
    if buckets is not None and buckets.copies > 1:
        copies = f"(VALUES (0), (1)) AS copies({copy})"
        moved_back = f"* REPLACE ({bucket} - {copy} AS {bucket})"
        theirs = f"SELECT {moved_back} FROM ({theirs}) CROSS JOIN {copies}"
    join = "LEFT JOIN" if node.how == "left" else "INNER JOIN"
    listed = result_columns(node, "l", "r")
    return f"SELECT {listed} FROM ({ours}) l {join} ({theirs}) r ON {' AND '.join(on)}"
