"""Promotion effect."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q14(t: Tables) -> Dataset:
    """The share of a month's revenue that came from promoted parts."""
    revenue = "l_extendedprice * (1 - l_discount)"
    return (
        t.lineitem.filter(
            "l_shipdate >= DATE '1995-09-01'"
            " AND l_shipdate < DATE '1995-09-01' + INTERVAL '1' MONTH"
        )
        .join(t.part, left_on="l_partkey", right_on="p_partkey")
        .agg(
            promo_revenue=f"100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN {revenue} ELSE 0 END)"
            f" / sum({revenue})"
        )
    )
