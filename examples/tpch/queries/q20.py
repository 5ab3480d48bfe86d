"""Potential part promotion."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q20(t: Tables) -> Dataset:
    """The suppliers of a nation that have too much of some part in stock."""
    canadian = t.supplier.join(
        t.nation.filter("n_name = 'CANADA'"), left_on="s_nationkey", right_on="n_nationkey"
    )
    parts = t.part.filter("p_name LIKE 'forest%'")
    sold = (
        t.lineitem.filter(
            "l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR"
        )
        .group_by("l_partkey", "l_suppkey")
        .agg(half_quantity="0.5 * sum(l_quantity)")
    )
    stock = t.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey", how="semi").join(
        sold,
        left_on=["ps_partkey", "ps_suppkey"],
        right_on=["l_partkey", "l_suppkey"],
        condition="ps_availqty > half_quantity",
    )
    return (
        canadian.join(stock, left_on="s_suppkey", right_on="ps_suppkey", how="semi")
        .select("s_name", "s_address")
        .sort("s_name")
    )
