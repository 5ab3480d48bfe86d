"""Pricing summary report."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q1(t: Tables) -> Dataset:
    """What was billed, shipped and returned up to a date."""
    return (
        t.lineitem.filter("l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY")
        .group_by("l_returnflag", "l_linestatus")
        .agg(
            sum_qty="sum(l_quantity)",
            sum_base_price="sum(l_extendedprice)",
            sum_disc_price="sum(l_extendedprice * (1 - l_discount))",
            sum_charge="sum(l_extendedprice * (1 - l_discount) * (1 + l_tax))",
            avg_qty="avg(l_quantity)",
            avg_price="avg(l_extendedprice)",
            avg_disc="avg(l_discount)",
            count_order="count(*)",
        )
        .sort("l_returnflag", "l_linestatus")
    )
