"""Large volume customer."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q18(t: Tables) -> Dataset:
    """The customers with the largest orders by quantity."""
    large = (
        t.lineitem.group_by("l_orderkey")
        .agg(order_quantity="sum(l_quantity)")
        .filter("order_quantity > 300")
    )
    orders = t.orders.join(large, left_on="o_orderkey", right_on="l_orderkey", how="semi").join(
        t.customer, left_on="o_custkey", right_on="c_custkey"
    )
    return (
        t.lineitem.join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .group_by("c_name", "o_custkey", "l_orderkey", "o_orderdate", "o_totalprice")
        .agg(quantity="sum(l_quantity)")
        .rename(o_custkey="c_custkey", l_orderkey="o_orderkey")
        .sort("o_totalprice DESC", "o_orderdate")
        .limit(100)
    )
