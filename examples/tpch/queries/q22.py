"""Global sales opportunity."""

from __future__ import annotations

from examples.tpch.tables import Tables

from millrace import Dataset


def q22(t: Tables) -> Dataset:
    """Customers of some countries with money to spend who have not ordered for years."""
    customers = t.customer.with_columns(cntrycode="substring(c_phone, 1, 2)").filter(
        "cntrycode IN ('13', '31', '23', '29', '30', '18', '17')"
    )
    mean = customers.filter("c_acctbal > 0.00").agg(mean_acctbal="avg(c_acctbal)")
    return (
        customers.join(mean, how="cross")
        .filter("c_acctbal > mean_acctbal")
        .join(t.orders, left_on="c_custkey", right_on="o_custkey", how="anti")
        .group_by("cntrycode")
        .agg(numcust="count(*)", totacctbal="sum(c_acctbal)")
        .sort("cntrycode")
    )
