"""Small-quantity-order revenue."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q17(t: Tables) -> Dataset:
    """Yearly revenue that would be lost without small orders of a kind of part."""
    parts = t.part.filter("p_brand = 'Brand#23' AND p_container = 'MED BOX'")
    lines = t.lineitem.join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
    small = lines.group_by("l_partkey").agg(small_quantity="0.2 * avg(l_quantity)")
    return lines.join(small, on="l_partkey", condition="l_quantity < small_quantity").agg(
        avg_yearly="sum(l_extendedprice) / 7.0"
    )
