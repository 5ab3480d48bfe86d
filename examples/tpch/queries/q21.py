"""Suppliers who kept orders waiting."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q21(t: Tables) -> Dataset:
    """The suppliers of a nation who alone were late in orders of several suppliers."""
    saudi = t.supplier.join(
        t.nation.filter("n_name = 'SAUDI ARABIA'"), left_on="s_nationkey", right_on="n_nationkey"
    )
    finished = t.orders.filter("o_orderstatus = 'F'")
    late = t.lineitem.filter("l_receiptdate > l_commitdate")
    other = "l_suppkey <> l_suppkey_right"
    return (
        late.join(saudi, left_on="l_suppkey", right_on="s_suppkey")
        .join(finished, left_on="l_orderkey", right_on="o_orderkey", how="semi")
        .join(t.lineitem, on="l_orderkey", how="semi", condition=other)
        .join(late, on="l_orderkey", how="anti", condition=other)
        .group_by("s_name")
        .agg(numwait="count(*)")
        .sort("numwait DESC", "s_name")
        .limit(100)
    )
