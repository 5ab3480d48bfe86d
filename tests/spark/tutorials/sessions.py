"""Visits of a web site as sessions: a pause of half an hour begins a new one."""

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as tutorials do


def run(spark: SparkSession, folder: str) -> DataFrame:
    clicks = spark.read.parquet(f"{folder}/clicks")
    w = Window.partitionBy("user").orderBy("ts")
    return (
        clicks.withColumn("previous", F.lag("ts").over(w))
        .withColumn("pause", F.col("ts").cast("long") - F.col("previous").cast("long"))
        .withColumn(
            "is_new", F.when(F.col("pause").isNull() | (F.col("pause") > 1800), 1).otherwise(0)
        )
        .withColumn("session", F.sum("is_new").over(w))
        .groupBy("user", "session")
        .agg(
            F.min("ts").alias("begun"),
            F.max("ts").alias("ended"),
            F.count("*").alias("clicks"),
            F.countDistinct("page").alias("pages"),
        )
        .withColumn("seconds", F.col("ended").cast("long") - F.col("begun").cast("long"))
        .orderBy("user", "session")
    )
