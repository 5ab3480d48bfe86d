"""Shipping priority."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q3(t: Tables) -> Dataset:
    """The largest orders of a market segment that were not shipped by a date."""
    customers = t.customer.filter("c_mktsegment = 'BUILDING'")
    orders = t.orders.filter("o_orderdate < DATE '1995-03-15'").join(
        customers, left_on="o_custkey", right_on="c_custkey"
    )
    return (
        t.lineitem.filter("l_shipdate > DATE '1995-03-15'")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .group_by("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(revenue="sum(l_extendedprice * (1 - l_discount))")
        .select("l_orderkey", "revenue", "o_orderdate", "o_shippriority")
        .sort("revenue DESC", "o_orderdate")
        .limit(10)
    )
