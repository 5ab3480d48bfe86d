"""Lines of JSON: fields are taken out, levels counted, and words of messages too."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as tutorials do


def run(spark: SparkSession, folder: str) -> DataFrame:
    lines = spark.read.parquet(f"{folder}/lines")
    parsed = lines.select(
        F.from_json("line", "level STRING, msg STRING, ms INT").alias("j")
    ).select("j.*")
    words = parsed.select("level", "ms", F.explode(F.split(F.lower("msg"), " ")).alias("word"))
    return (
        words.where(F.length("word") > 2)
        .groupBy("level", "word")
        .agg(F.count("*").alias("n"), F.max("ms").alias("slowest"))
        .where("n > 1")
        .orderBy("level", F.desc("n"), "word")
    )
