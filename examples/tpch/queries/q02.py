"""Minimum cost supplier."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q2(t: Tables) -> Dataset:
    """Which supplier of a region offers a part of a size and type at the least cost."""
    europe = t.nation.join(
        t.region.filter("r_name = 'EUROPE'"),
        left_on="n_regionkey",
        right_on="r_regionkey",
        how="semi",
    )
    suppliers = t.supplier.join(europe, left_on="s_nationkey", right_on="n_nationkey")
    parts = t.part.filter("p_size = 15 AND p_type LIKE '%BRASS'")
    offers = t.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey").join(
        suppliers, left_on="ps_suppkey", right_on="s_suppkey"
    )
    least = offers.group_by("ps_partkey").agg(least_cost="min(ps_supplycost)")
    return (
        offers.join(least, on="ps_partkey", condition="ps_supplycost = least_cost")
        .select(
            *("s_acctbal", "s_name", "n_name", "ps_partkey AS p_partkey", "p_mfgr"),
            *("s_address", "s_phone", "s_comment"),
        )
        .sort("s_acctbal DESC", "n_name", "s_name", "p_partkey")
        .limit(100)
    )
