"""Lets Spark find `format("millrace")` by itself: it looks for packages named `pyspark_*`."""

from millrace.spark.source.data_source import MillraceSource as DefaultSource

__all__ = ["DefaultSource"]
