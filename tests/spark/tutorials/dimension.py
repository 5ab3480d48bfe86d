"""A slowly changing dimension: each change closes the old row and opens a new one."""

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as tutorials do


def run(spark: SparkSession, folder: str) -> DataFrame:
    current = spark.read.parquet(f"{folder}/customers")
    updates = spark.read.parquet(f"{folder}/updates")
    changed = (
        updates.alias("u")
        .join(current.alias("c"), F.col("u.cust") == F.col("c.cust"), "left")
        .where(F.col("c.cust").isNull() | ~F.col("u.city").eqNullSafe(F.col("c.city")))
        .select("u.cust", "u.city", F.col("u.day").alias("valid_from"))
    )
    history = current.select("cust", "city", F.lit("2020-01-01").cast("date").alias("valid_from"))
    w = Window.partitionBy("cust").orderBy("valid_from")
    return (
        history.unionByName(changed)
        .withColumn("valid_to", F.lead("valid_from").over(w))
        .withColumn("is_current", F.col("valid_to").isNull())
        .fillna({"city": "unknown"})
        .orderBy("cust", "valid_from")
    )
