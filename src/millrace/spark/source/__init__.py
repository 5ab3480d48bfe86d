"""`format("millrace")`: shuffles, journals and the rows of jobs as a data source of Spark.

Spark runs the parts of it in processes of its own: planning in Python workers of the driver's JVM,
which have no Spark session, reading and writing in tasks. Nothing but options and small values
travels between them, and every part opens the workspace by itself and lets go of it when it is
done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace.extras import check_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KNOWN: Final = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: SparkSession) -> None:
    """Make `format("millrace")` known to a session, classic or Connect.

    Needed only where Spark does not find the package `pyspark_millrace` by itself.

    Example:
        >>> from millrace.spark import register
        >>> register(spark)
        >>> spark.read.format("millrace").option("journal", "orders").load(ws.path).count()
        3
    """
    check_extra("spark", 'format("millrace")')
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - keeps imports light

    from millrace.spark.source.data_source import MillraceSource  # noqa: PLC0415 - as above

    try:
        spark.dataSource.register(MillraceSource)
    except AnalysisException as error:
        if error.getCondition() != _KNOWN:  # Spark 4.0 refuses what it found by itself.
            raise
