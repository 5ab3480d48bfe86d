"""Discounted revenue."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q19(t: Tables) -> Dataset:
    """Revenue from parts of three kinds, sold in fitting amounts and delivered in person by air."""
    wanted = """
        (p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
            AND l_quantity BETWEEN 1 AND 1 + 10 AND p_size BETWEEN 1 AND 5)
        OR (p_brand = 'Brand#23' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
            AND l_quantity BETWEEN 10 AND 10 + 10 AND p_size BETWEEN 1 AND 10)
        OR (p_brand = 'Brand#34' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
            AND l_quantity BETWEEN 20 AND 20 + 10 AND p_size BETWEEN 1 AND 15)
    """
    return (
        t.lineitem.filter(
            "l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON'"
        )
        .join(t.part, left_on="l_partkey", right_on="p_partkey", condition=wanted)
        .agg(revenue="sum(l_extendedprice * (1 - l_discount))")
    )
