"""TPC-H's queries 12 to 22 as PySpark DataFrames."""

import datetime as dt

from examples.tpch.dataframes.frames import Frames
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as PySpark's users do


def q12(t: Frames) -> DataFrame:
    """Shipping modes and order priority."""
    lines = (
        t.lineitem.filter(F.col("l_shipmode").isin("MAIL", "SHIP"))
        .filter(F.col("l_commitdate") < F.col("l_receiptdate"))
        .filter(F.col("l_shipdate") < F.col("l_commitdate"))
        .filter((F.col("l_receiptdate") >= "1994-01-01") & (F.col("l_receiptdate") < "1995-01-01"))
    )
    urgent = F.col("o_orderpriority").isin(["1-URGENT", "2-HIGH"])
    return (
        lines.join(t.orders, lines["l_orderkey"] == t.orders["o_orderkey"])
        .groupBy("l_shipmode")
        .agg(
            F.sum(F.when(urgent, 1).otherwise(0)).alias("high_line_count"),
            F.sum(F.when(~urgent, 1).otherwise(0)).alias("low_line_count"),
        )
        .orderBy("l_shipmode")
    )


def q13(t: Frames) -> DataFrame:
    """Customer distribution."""
    orders = t.orders.filter(~F.col("o_comment").like("%special%requests%"))
    return (
        t.customer.join(orders, t.customer.c_custkey == orders.o_custkey, "left_outer")
        .groupBy("c_custkey")
        .agg(F.count("o_orderkey").alias("c_count"))
        .groupBy("c_count")
        .count()
        .withColumnRenamed("count", "custdist")
        .orderBy(["custdist", "c_count"], ascending=[False, False])
    )


def q14(t: Frames) -> DataFrame:
    """Promotion effect."""
    lines = t.lineitem.where(
        (F.col("l_shipdate") >= dt.date(1995, 9, 1)) & (F.col("l_shipdate") < dt.date(1995, 10, 1))
    )
    revenue = F.col("l_extendedprice") * (F.lit(1) - F.col("l_discount"))
    promo = F.when(F.col("p_type").startswith("PROMO"), revenue).otherwise(F.lit(0))
    return lines.join(t.part, F.col("l_partkey") == F.col("p_partkey")).select(
        (F.lit(100.0) * F.sum(promo) / F.sum(revenue)).alias("promo_revenue")
    )


def q15(t: Frames) -> DataFrame:
    """Top supplier."""
    revenue = (
        t.lineitem.where(
            (F.col("l_shipdate") >= "1996-01-01") & (F.col("l_shipdate") < "1996-04-01")
        )
        .groupBy(F.col("l_suppkey").alias("supplier_no"))
        .agg(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("total_revenue"))
    )
    top = revenue.withColumn(
        "rank", F.rank().over(Window.orderBy(F.col("total_revenue").desc()))
    ).where("rank = 1")
    return (
        t.supplier.join(top, t.supplier.s_suppkey == top.supplier_no)
        .select("s_suppkey", "s_name", "s_address", "s_phone", "total_revenue")
        .orderBy("s_suppkey")
    )


def q16(t: Frames) -> DataFrame:
    """Parts/supplier relationship."""
    parts = t.part.filter(
        (F.col("p_brand") != "Brand#45")
        & ~F.col("p_type").startswith("MEDIUM POLISHED")
        & F.col("p_size").isin(49, 14, 23, 45, 19, 3, 36, 9)
    )
    complaints = t.supplier.filter(F.col("s_comment").rlike("Customer.*Complaints"))
    return (
        t.partsupp.join(parts, t.partsupp.ps_partkey == parts.p_partkey)
        .join(complaints, t.partsupp.ps_suppkey == complaints.s_suppkey, "left_anti")
        .groupBy("p_brand", "p_type", "p_size")
        .agg(F.countDistinct("ps_suppkey").alias("supplier_cnt"))
        .orderBy(F.desc("supplier_cnt"), "p_brand", "p_type", "p_size")
    )


def q17(t: Frames) -> DataFrame:
    """Small-quantity-order revenue."""
    parts = t.part.where((F.col("p_brand") == "Brand#23") & (F.col("p_container") == "MED BOX"))
    by_part = Window.partitionBy("l_partkey")
    return (
        t.lineitem.join(F.broadcast(parts), F.col("l_partkey") == F.col("p_partkey"))
        .withColumn("avg_quantity", F.avg("l_quantity").over(by_part))
        .where(F.col("l_quantity") < 0.2 * F.col("avg_quantity"))
        .agg((F.sum("l_extendedprice") / 7.0).alias("avg_yearly"))
    )


def q18(t: Frames) -> DataFrame:
    """Large volume customer."""
    large = (
        t.lineitem.groupBy("l_orderkey")
        .agg(F.sum("l_quantity").alias("quantity"))
        .where(F.col("quantity") > 300)
    )
    return (
        t.orders.join(large, t.orders.o_orderkey == large.l_orderkey)
        .join(t.customer, t.orders.o_custkey == t.customer.c_custkey)
        .select(
            *("c_name", "c_custkey", "o_orderkey"),
            *("o_orderdate", "o_totalprice", "quantity"),
        )
        .orderBy(F.desc("o_totalprice"), "o_orderdate")
        .limit(100)
    )


def q19(t: Frames) -> DataFrame:
    """Discounted revenue."""
    small = (
        (F.col("p_brand") == "Brand#12")
        & F.col("p_container").isin("SM CASE", "SM BOX", "SM PACK", "SM PKG")
        & F.col("l_quantity").between(1, 11)
        & F.col("p_size").between(1, 5)
    )
    medium = (
        (F.col("p_brand") == "Brand#23")
        & F.col("p_container").isin("MED BAG", "MED BOX", "MED PKG", "MED PACK")
        & F.col("l_quantity").between(10, 20)
        & F.col("p_size").between(1, 10)
    )
    large = (
        (F.col("p_brand") == "Brand#34")
        & F.col("p_container").isin("LG CASE", "LG BOX", "LG PACK", "LG PKG")
        & F.col("l_quantity").between(20, 30)
        & F.col("p_size").between(1, 15)
    )
    return (
        t.lineitem.join(t.part, t.lineitem.l_partkey == t.part.p_partkey)
        .filter(F.col("l_shipmode").isin("AIR", "AIR REG"))
        .filter(F.col("l_shipinstruct") == "DELIVER IN PERSON")
        .filter(small | medium | large)
        .select(F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).alias("revenue"))
    )


def q20(t: Frames) -> DataFrame:
    """Potential part promotion."""
    forest = t.part.where(F.col("p_name").startswith("forest")).select("p_partkey").distinct()
    sold = (
        t.lineitem.where(F.year("l_shipdate") == 1994)
        .groupBy("l_partkey", "l_suppkey")
        .agg((0.5 * F.sum("l_quantity")).alias("half_sold"))
    )
    too_much = (
        t.partsupp.join(forest, F.col("ps_partkey") == F.col("p_partkey"), "leftsemi")
        .join(
            sold,
            (F.col("ps_partkey") == F.col("l_partkey"))
            & (F.col("ps_suppkey") == F.col("l_suppkey"))
            & (F.col("ps_availqty") > F.col("half_sold")),
        )
        .select("ps_suppkey")
        .dropDuplicates()
    )
    return (
        t.supplier.join(too_much, t.supplier.s_suppkey == too_much.ps_suppkey)
        .join(t.nation, t.supplier.s_nationkey == t.nation.n_nationkey)
        .where(t.nation.n_name == "CANADA")
        .select("s_name", "s_address")
        .orderBy("s_name")
    )


def q21(t: Frames) -> DataFrame:
    """Suppliers who kept orders waiting."""
    late = t.lineitem.where(F.col("l_receiptdate") > F.col("l_commitdate")).select(
        "l_orderkey", "l_suppkey"
    )
    l1, l2, l3 = late.alias("l1"), t.lineitem.alias("l2"), late.alias("l3")
    return (
        l1.join(t.supplier, F.col("l1.l_suppkey") == F.col("s_suppkey"))
        .join(t.orders, F.col("l1.l_orderkey") == F.col("o_orderkey"))
        .join(t.nation, F.col("s_nationkey") == F.col("n_nationkey"))
        .where((F.col("o_orderstatus") == "F") & (F.col("n_name") == "SAUDI ARABIA"))
        .join(
            l2,
            (F.col("l2.l_orderkey") == F.col("l1.l_orderkey"))
            & (F.col("l2.l_suppkey") != F.col("l1.l_suppkey")),
            "left_semi",
        )
        .join(
            l3,
            (F.col("l3.l_orderkey") == F.col("l1.l_orderkey"))
            & (F.col("l3.l_suppkey") != F.col("l1.l_suppkey")),
            "left_anti",
        )
        .groupBy("s_name")
        .agg(F.count("*").alias("numwait"))
        .orderBy(F.col("numwait").desc(), F.col("s_name").asc())
        .limit(100)
    )


def q22(t: Frames) -> DataFrame:
    """Global sales opportunity."""
    customers = t.customer.withColumn("cntrycode", F.substring("c_phone", 1, 2)).filter(
        F.col("cntrycode").isin(["13", "31", "23", "29", "30", "18", "17"])
    )
    average = customers.filter(F.col("c_acctbal") > 0.0).agg(
        F.avg("c_acctbal").alias("avg_acctbal")
    )
    return (
        customers.crossJoin(average)
        .filter(F.col("c_acctbal") > F.col("avg_acctbal"))
        .join(t.orders, F.col("c_custkey") == F.col("o_custkey"), "left_anti")
        .groupBy("cntrycode")
        .agg(F.count("c_custkey").alias("numcust"), F.sum("c_acctbal").alias("totacctbal"))
        .orderBy("cntrycode")
    )
