"""Returned item reporting."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q10(t: Tables) -> Dataset:
    """The customers whose returned parts of a quarter cost most revenue."""
    orders = t.orders.filter(
        "o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1993-10-01' + INTERVAL '3' MONTH"
    )
    customers = t.customer.join(t.nation, left_on="c_nationkey", right_on="n_nationkey")
    return (
        t.lineitem.filter("l_returnflag = 'R'")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(customers, left_on="o_custkey", right_on="c_custkey")
        .group_by(
            *("o_custkey", "c_name", "c_acctbal", "c_phone", "n_name", "c_address", "c_comment")
        )
        .agg(revenue="sum(l_extendedprice * (1 - l_discount))")
        .select(
            *("o_custkey AS c_custkey", "c_name", "revenue", "c_acctbal"),
            *("n_name", "c_address", "c_phone", "c_comment"),
        )
        .sort("revenue DESC")
        .limit(20)
    )
