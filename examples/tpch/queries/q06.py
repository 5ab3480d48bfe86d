"""Forecasting revenue change."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q6(t: Tables) -> Dataset:
    """What small discounts of a year cost."""
    return t.lineitem.filter(
        "l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR"
        " AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24"
    ).agg(revenue="sum(l_extendedprice * l_discount)")
