"""Important stock identification."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q11(t: Tables) -> Dataset:
    """The parts that make up a notable share of the stock in a nation."""
    german = t.nation.filter("n_name = 'GERMANY'")
    suppliers = t.supplier.join(german, left_on="s_nationkey", right_on="n_nationkey", how="semi")
    stock = t.partsupp.join(suppliers, left_on="ps_suppkey", right_on="s_suppkey", how="semi")
    total = stock.agg(least_value=f"sum(ps_supplycost * ps_availqty) * {t.fraction}")
    return (
        stock.group_by("ps_partkey")
        .agg(value="sum(ps_supplycost * ps_availqty)")
        .join(total, how="cross")
        .filter("value > least_value")
        .drop("least_value")
        .sort("value DESC")
    )
