"""Shipping modes and order priority."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q12(t: Tables) -> Dataset:
    """Whether the cheaper ways of shipping make urgent orders late."""
    late = t.lineitem.filter(
        "l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate"
        " AND l_shipdate < l_commitdate AND l_receiptdate >= DATE '1994-01-01'"
        " AND l_receiptdate < DATE '1994-01-01' + INTERVAL '1' YEAR"
    )
    urgent = "o_orderpriority IN ('1-URGENT', '2-HIGH')"
    return (
        t.orders.join(late, left_on="o_orderkey", right_on="l_orderkey")
        .group_by("l_shipmode")
        .agg(
            high_line_count=f"sum(CASE WHEN {urgent} THEN 1 ELSE 0 END)",
            low_line_count=f"sum(CASE WHEN {urgent} THEN 0 ELSE 1 END)",
        )
        .sort("l_shipmode")
    )
