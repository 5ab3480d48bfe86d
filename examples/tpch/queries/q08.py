"""National market share."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q8(t: Tables) -> Dataset:
    """A nation's share of a region's market for one type of part, by year."""
    america = t.nation.join(
        t.region.filter("r_name = 'AMERICA'"),
        left_on="n_regionkey",
        right_on="r_regionkey",
        how="semi",
    )
    customers = t.customer.join(america, left_on="c_nationkey", right_on="n_nationkey", how="semi")
    suppliers = t.supplier.join(t.nation, left_on="s_nationkey", right_on="n_nationkey")
    orders = t.orders.filter("o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'").join(
        customers, left_on="o_custkey", right_on="c_custkey", how="semi"
    )
    parts = t.part.filter("p_type = 'ECONOMY ANODIZED STEEL'")
    return (
        t.lineitem.join(parts, left_on="l_partkey", right_on="p_partkey", how="semi")
        .join(orders, left_on="l_orderkey", right_on="o_orderkey")
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .with_columns(
            o_year="extract(YEAR FROM o_orderdate)", volume="l_extendedprice * (1 - l_discount)"
        )
        .group_by("o_year")
        .agg(mkt_share="sum(CASE WHEN n_name = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume)")
        .sort("o_year")
    )
