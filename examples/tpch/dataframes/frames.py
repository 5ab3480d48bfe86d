"""The eight tables as DataFrames."""

from pathlib import Path

from examples.tpch.data import scale_of
from examples.tpch.tables import fraction
from pyspark.sql import SparkSession


class Frames:
    """TPC-H's tables, and the share of the stock that query 11 asks for."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.fraction = float(fraction(scale_of(folder)))
        self.region = spark.read.parquet(f"{folder}/region")
        self.nation = spark.read.parquet(f"{folder}/nation")
        self.supplier = spark.read.parquet(f"{folder}/supplier")
        self.customer = spark.read.parquet(f"{folder}/customer")
        self.part = spark.read.parquet(f"{folder}/part")
        self.partsupp = spark.read.parquet(f"{folder}/partsupp")
        self.orders = spark.read.parquet(f"{folder}/orders")
        self.lineitem = spark.read.parquet(f"{folder}/lineitem")
