"""Local supplier volume."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q5(t: Tables) -> Dataset:
    """Revenue in each nation of a region where customer and supplier are both of that nation."""
    asia = t.nation.join(
        t.region.filter("r_name = 'ASIA'"), left_on="n_regionkey", right_on="r_regionkey"
    )
    suppliers = t.supplier.join(asia, left_on="s_nationkey", right_on="n_nationkey")
    orders = t.orders.filter(
        "o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-01-01' + INTERVAL '1' YEAR"
    ).join(t.customer, left_on="o_custkey", right_on="c_custkey")
    return (
        t.lineitem.join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(
            suppliers,
            left_on=["l_suppkey", "c_nationkey"],
            right_on=["s_suppkey", "s_nationkey"],
        )
        .group_by("n_name")
        .agg(revenue="sum(l_extendedprice * (1 - l_discount))")
        .sort("revenue DESC")
    )
