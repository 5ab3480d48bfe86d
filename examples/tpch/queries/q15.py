"""Top supplier."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q15(t: Tables) -> Dataset:
    """The supplier, or suppliers, with the most revenue of a quarter."""
    revenue = (
        t.lineitem.filter(
            "l_shipdate >= DATE '1996-01-01'"
            " AND l_shipdate < DATE '1996-01-01' + INTERVAL '3' MONTH"
        )
        .group_by("l_suppkey")
        .agg(total_revenue="sum(l_extendedprice * (1 - l_discount))")
    )
    top = revenue.agg(top_revenue="max(total_revenue)")
    best = revenue.join(top, how="cross").filter("total_revenue = top_revenue")
    return (
        t.supplier.join(best, left_on="s_suppkey", right_on="l_suppkey")
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
        .sort("s_suppkey")
    )
