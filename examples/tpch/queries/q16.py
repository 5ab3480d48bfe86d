"""Parts/supplier relationship."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q16(t: Tables) -> Dataset:
    """How many suppliers without complaints can deliver parts of a kind."""
    parts = t.part.filter(
        "p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'"
        " AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)"
    )
    complaints = t.supplier.filter("s_comment LIKE '%Customer%Complaints%'")
    return (
        t.partsupp.join(parts, left_on="ps_partkey", right_on="p_partkey")
        .join(complaints, left_on="ps_suppkey", right_on="s_suppkey", how="anti")
        .group_by("p_brand", "p_type", "p_size")
        .agg(supplier_cnt="count(DISTINCT ps_suppkey)")
        .sort("supplier_cnt DESC", "p_brand", "p_type", "p_size")
    )
