"""Product type profit measure."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q9(t: Tables) -> Dataset:
    """Profit on parts of a colour, by the supplier's nation and year."""
    parts = t.part.filter("p_name LIKE '%green%'")
    suppliers = t.supplier.join(t.nation, left_on="s_nationkey", right_on="n_nationkey")
    costs = t.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey", how="semi")
    return (
        t.lineitem.join(
            costs,
            left_on=["l_partkey", "l_suppkey"],
            right_on=["ps_partkey", "ps_suppkey"],
        )
        .join(t.orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .select(
            "n_name AS nation",
            "extract(YEAR FROM o_orderdate) AS o_year",
            "l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount",
        )
        .group_by("nation", "o_year")
        .agg(sum_profit="sum(amount)")
        .sort("nation", "o_year DESC")
    )
