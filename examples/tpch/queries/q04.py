"""Order priority checking."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q4(t: Tables) -> Dataset:
    """How many orders of a quarter had a line that came late, by priority."""
    late = t.lineitem.filter("l_commitdate < l_receiptdate")
    return (
        t.orders.filter(
            "o_orderdate >= DATE '1993-07-01'"
            " AND o_orderdate < DATE '1993-07-01' + INTERVAL '3' MONTH"
        )
        .join(late, left_on="o_orderkey", right_on="l_orderkey", how="semi")
        .group_by("o_orderpriority")
        .agg(order_count="count(*)")
        .sort("o_orderpriority")
    )
