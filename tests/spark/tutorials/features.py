"""Features of users for a model: rolling sums, ranks, and a pivot of pages."""

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as tutorials do


def run(spark: SparkSession, folder: str) -> DataFrame:
    clicks = spark.read.parquet(f"{folder}/clicks")
    daily = clicks.groupBy("user", F.to_date("ts").alias("day")).agg(F.sum("spent").alias("spent"))
    last3 = Window.partitionBy("user").orderBy("day").rowsBetween(-2, Window.currentRow)
    rolling = daily.withColumn("spent_3", F.sum("spent").over(last3)).withColumn(
        "rank", F.dense_rank().over(Window.partitionBy("day").orderBy(F.desc("spent"), "user"))
    )
    pages = clicks.groupBy("user").pivot("page", ["view", "cart", "buy"]).agg(F.count("ts"))
    return (
        rolling.groupBy("user")
        .agg(
            F.max("spent_3").alias("most"),
            F.avg("rank").alias("rank"),
            F.stddev("spent").alias("dev"),
        )
        .join(pages.na.fill(0), "user", "left")
        .withColumn("rank", F.round("rank", 4))
        .withColumn("dev", F.round("dev", 6))
        .orderBy("user")
    )
