"""Everything that needs pyspark: sessions, tasks, DataFrames, jobs, the data source.

Work reaches Spark through DataFrames alone (`spark.range(...).mapInArrow(...)`), so classic and
Connect sessions are served alike.
"""

from millrace.spark.source import register

__all__ = ["register"]
