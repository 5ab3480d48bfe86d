"""Volume shipping."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q7(t: Tables) -> Dataset:
    """What was shipped between two nations, each way, by year."""
    both = t.nation.filter("n_name IN ('FRANCE', 'GERMANY')")
    suppliers = t.supplier.join(
        both.rename(n_name="supp_nation"), left_on="s_nationkey", right_on="n_nationkey"
    ).select("s_suppkey", "supp_nation")
    customers = t.customer.join(
        both.rename(n_name="cust_nation"), left_on="c_nationkey", right_on="n_nationkey"
    ).select("c_custkey", "cust_nation")
    orders = t.orders.join(customers, left_on="o_custkey", right_on="c_custkey")
    return (
        t.lineitem.filter("l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'")
        .join(suppliers, left_on="l_suppkey", right_on="s_suppkey")
        .join(
            orders,
            left_on="l_orderkey",
            right_on="o_orderkey",
            condition="supp_nation <> cust_nation",
        )
        .with_columns(
            l_year="extract(YEAR FROM l_shipdate)", volume="l_extendedprice * (1 - l_discount)"
        )
        .group_by("supp_nation", "cust_nation", "l_year")
        .agg(revenue="sum(volume)")
        .sort("supp_nation", "cust_nation", "l_year")
    )
