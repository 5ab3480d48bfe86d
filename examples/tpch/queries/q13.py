"""Customer distribution."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q13(t: Tables) -> Dataset:
    """How many customers have how many orders, those without any too."""
    return (
        t.customer.join(
            t.orders,
            left_on="c_custkey",
            right_on="o_custkey",
            how="left",
            condition="o_comment NOT LIKE '%special%requests%'",
        )
        .group_by("c_custkey")
        .agg(c_count="count(o_orderkey)")
        .group_by("c_count")
        .agg(custdist="count(*)")
        .sort("custdist DESC", "c_count DESC")
    )
