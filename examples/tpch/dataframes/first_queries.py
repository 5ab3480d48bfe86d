"""TPC-H's queries 1 to 11 as PySpark DataFrames."""

import datetime as dt

from examples.tpch.dataframes.frames import Frames
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as PySpark's users do


def q1(t: Frames) -> DataFrame:
    """Pricing summary report."""
    disc_price = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    return (
        t.lineitem.filter(F.col("l_shipdate") <= F.date_sub(F.lit("1998-12-01").cast("date"), 90))
        .groupBy("l_returnflag", "l_linestatus")
        .agg(
            F.sum("l_quantity").alias("sum_qty"),
            F.sum("l_extendedprice").alias("sum_base_price"),
            F.sum(disc_price).alias("sum_disc_price"),
            F.sum(disc_price * (1 + F.col("l_tax"))).alias("sum_charge"),
            F.avg("l_quantity").alias("avg_qty"),
            F.avg("l_extendedprice").alias("avg_price"),
            F.avg("l_discount").alias("avg_disc"),
            F.count("*").alias("count_order"),
        )
        .orderBy("l_returnflag", "l_linestatus")
    )


def q2(t: Frames) -> DataFrame:
    """Minimum cost supplier."""
    europe = (
        t.region.where(F.col("r_name") == "EUROPE")
        .join(t.nation, F.col("r_regionkey") == F.col("n_regionkey"))
        .join(t.supplier, F.col("n_nationkey") == F.col("s_nationkey"))
        .join(t.partsupp, F.col("s_suppkey") == F.col("ps_suppkey"))
    )
    brass = t.part.where((t.part.p_size == 15) & t.part.p_type.endswith("BRASS"))
    by_part = Window.partitionBy("p_partkey")
    return (
        europe.join(brass, europe["ps_partkey"] == brass["p_partkey"])
        .withColumn("min_cost", F.min("ps_supplycost").over(by_part))
        .where(F.col("ps_supplycost") == F.col("min_cost"))
        .select(
            *("s_acctbal", "s_name", "n_name", "p_partkey"),
            *("p_mfgr", "s_address", "s_phone", "s_comment"),
        )
        .orderBy(F.desc("s_acctbal"), "n_name", "s_name", "p_partkey")
        .limit(100)
    )


def q3(t: Frames) -> DataFrame:
    """Shipping priority."""
    customers = t.customer.filter(F.col("c_mktsegment") == "BUILDING")
    orders = t.orders.filter(F.col("o_orderdate") < "1995-03-15")
    lines = t.lineitem.filter(F.col("l_shipdate") > "1995-03-15")
    return (
        customers.join(orders, customers.c_custkey == orders.o_custkey)
        .join(lines, orders.o_orderkey == lines.l_orderkey)
        .withColumn("volume", F.col("l_extendedprice") * (1 - F.col("l_discount")))
        .groupBy("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(F.sum("volume").alias("revenue"))
        .select("l_orderkey", "revenue", "o_orderdate", "o_shippriority")
        .sort(F.col("revenue").desc(), F.col("o_orderdate"))
        .limit(10)
    )


def q4(t: Frames) -> DataFrame:
    """Order priority checking."""
    start = F.to_date(F.lit("1993-07-01"))
    orders = t.orders.where(
        (F.col("o_orderdate") >= start) & (F.col("o_orderdate") < F.add_months(start, 3))
    )
    late = t.lineitem.where(F.col("l_commitdate") < F.col("l_receiptdate"))
    return (
        orders.join(late, orders.o_orderkey == late.l_orderkey, "left_semi")
        .groupBy("o_orderpriority")
        .agg(F.count(F.lit(1)).alias("order_count"))
        .orderBy("o_orderpriority")
    )


def q5(t: Frames) -> DataFrame:
    """Local supplier volume."""
    orders = t.orders.filter(
        (F.col("o_orderdate") >= dt.date(1994, 1, 1)) & (F.col("o_orderdate") < dt.date(1995, 1, 1))
    )
    asia = (
        t.region.filter("r_name = 'ASIA'")
        .join(t.nation, t.region.r_regionkey == t.nation.n_regionkey)
        .join(t.supplier, t.nation.n_nationkey == t.supplier.s_nationkey)
        .select("n_name", "s_suppkey", "s_nationkey")
    )
    return (
        t.lineitem.join(asia, t.lineitem.l_suppkey == asia.s_suppkey)
        .join(orders, F.col("l_orderkey") == F.col("o_orderkey"))
        .join(
            t.customer,
            (F.col("o_custkey") == F.col("c_custkey"))
            & (F.col("s_nationkey") == F.col("c_nationkey")),
        )
        .groupBy("n_name")
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("revenue"))
        .orderBy(F.col("revenue").desc())
    )


def q6(t: Frames) -> DataFrame:
    """Forecasting revenue change."""
    return (
        t.lineitem.filter(F.col("l_shipdate") >= "1994-01-01")
        .filter(F.col("l_shipdate") < "1995-01-01")
        .filter(F.col("l_discount").between(0.05, 0.07))
        .filter(F.col("l_quantity") < 24)
        .agg(F.sum(F.col("l_extendedprice") * F.col("l_discount")).alias("revenue"))
    )


def q7(t: Frames) -> DataFrame:
    """Volume shipping."""
    n1, n2 = t.nation.alias("n1"), t.nation.alias("n2")
    pairs = n1.crossJoin(n2).where(
        ((F.col("n1.n_name") == "FRANCE") & (F.col("n2.n_name") == "GERMANY"))
        | ((F.col("n1.n_name") == "GERMANY") & (F.col("n2.n_name") == "FRANCE"))
    )
    lines = t.lineitem.where(F.col("l_shipdate").between("1995-01-01", "1996-12-31"))
    return (
        lines.join(t.supplier, F.col("l_suppkey") == F.col("s_suppkey"))
        .join(t.orders, F.col("l_orderkey") == F.col("o_orderkey"))
        .join(t.customer, F.col("o_custkey") == F.col("c_custkey"))
        .join(
            pairs,
            (F.col("s_nationkey") == F.col("n1.n_nationkey"))
            & (F.col("c_nationkey") == F.col("n2.n_nationkey")),
        )
        .select(
            F.col("n1.n_name").alias("supp_nation"),
            F.col("n2.n_name").alias("cust_nation"),
            F.year("l_shipdate").alias("l_year"),
            (F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("volume"),
        )
        .groupBy("supp_nation", "cust_nation", "l_year")
        .agg(F.sum("volume").alias("revenue"))
        .orderBy("supp_nation", "cust_nation", "l_year")
    )


def q8(t: Frames) -> DataFrame:
    """National market share."""
    america = t.region.where(F.col("r_name") == "AMERICA").join(
        t.nation, F.col("r_regionkey") == F.col("n_regionkey")
    )
    customers = t.customer.join(america, F.col("c_nationkey") == F.col("n_nationkey")).select(
        "c_custkey"
    )
    sellers = t.supplier.join(t.nation, F.col("s_nationkey") == F.col("n_nationkey")).select(
        "s_suppkey", F.col("n_name").alias("nation")
    )
    return (
        t.part.where(F.col("p_type") == "ECONOMY ANODIZED STEEL")
        .join(t.lineitem, F.col("p_partkey") == F.col("l_partkey"))
        .join(
            t.orders.where(F.col("o_orderdate").between("1995-01-01", "1996-12-31")),
            F.col("l_orderkey") == F.col("o_orderkey"),
        )
        .join(customers, F.col("o_custkey") == F.col("c_custkey"))
        .join(sellers, F.col("l_suppkey") == F.col("s_suppkey"))
        .withColumn("o_year", F.year("o_orderdate"))
        .withColumn("volume", F.expr("l_extendedprice * (1 - l_discount)"))
        .withColumn("brazil", F.when(F.col("nation") == "BRAZIL", F.col("volume")).otherwise(0))
        .groupBy("o_year")
        .agg((F.sum("brazil") / F.sum("volume")).alias("mkt_share"))
        .orderBy("o_year")
    )


def q9(t: Frames) -> DataFrame:
    """Product type profit measure."""
    green = t.part.filter(F.col("p_name").contains("green"))
    lines = t.lineitem.join(green, t.lineitem.l_partkey == green.p_partkey)
    amount = F.col("l_extendedprice") * (1 - F.col("l_discount")) - F.col("ps_supplycost") * F.col(
        "l_quantity"
    )
    return (
        lines.join(t.supplier, lines.l_suppkey == t.supplier.s_suppkey)
        .join(
            t.partsupp,
            [lines.l_suppkey == t.partsupp.ps_suppkey, lines.l_partkey == t.partsupp.ps_partkey],
        )
        .join(t.orders, lines.l_orderkey == t.orders.o_orderkey)
        .join(t.nation, t.supplier.s_nationkey == t.nation.n_nationkey)
        .select(
            t.nation.n_name.alias("nation"),
            F.year(t.orders.o_orderdate).alias("o_year"),
            amount.alias("amount"),
        )
        .groupBy("nation", "o_year")
        .agg(F.sum("amount").alias("sum_profit"))
        .orderBy("nation", F.desc("o_year"))
    )


def q10(t: Frames) -> DataFrame:
    """Returned item reporting."""
    orders = t.orders.where("o_orderdate >= '1993-10-01' AND o_orderdate < '1994-01-01'")
    returned = t.lineitem.where(t.lineitem.l_returnflag == "R")
    return (
        t.customer.join(orders, t.customer.c_custkey == orders.o_custkey, "inner")
        .join(returned, orders.o_orderkey == returned.l_orderkey, "inner")
        .join(t.nation, t.customer.c_nationkey == t.nation.n_nationkey, "inner")
        .groupBy(
            *("c_custkey", "c_name", "c_acctbal", "c_phone"),
            *("n_name", "c_address", "c_comment"),
        )
        .agg(F.expr("sum(l_extendedprice * (1 - l_discount)) AS revenue"))
        .select(
            *("c_custkey", "c_name", "revenue", "c_acctbal"),
            *("n_name", "c_address", "c_phone", "c_comment"),
        )
        .orderBy("revenue", ascending=False)
        .limit(20)
    )


def q11(t: Frames) -> DataFrame:
    """Important stock identification."""
    stock = (
        t.partsupp.join(t.supplier, F.col("ps_suppkey") == F.col("s_suppkey"))
        .join(t.nation, F.col("s_nationkey") == F.col("n_nationkey"))
        .filter(F.col("n_name") == "GERMANY")
        .withColumn("value", F.col("ps_supplycost") * F.col("ps_availqty"))
    )
    total = stock.agg((F.sum("value") * t.fraction).alias("least"))
    return (
        stock.groupBy("ps_partkey")
        .agg(F.sum("value").alias("value"))
        .crossJoin(total)
        .where(F.col("value") > F.col("least"))
        .drop("least")
        .orderBy(F.desc("value"))
    )
