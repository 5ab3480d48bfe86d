"""What identifies the rows of a table of Spark's catalog: its Parquet files, where they are local.

Invariant: a table is recognised only if every file it is read from is known by size and time of
change. A view, another format, another kind of path or a fresh file is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.durations import ms
from millrace.plan.nodes.on_spark import SparkWork
from millrace.spark.spark_presence import call_spark

_STATEMENT: Final = "TABLE "
_TABLE_TYPES: Final = frozenset({"MANAGED", "EXTERNAL"})


def table_files(
    spark: SparkSession, config: Config, work: SparkWork
) -> list[tuple[str, int, int]] | None:
    """The files of the table that the work reads, with sizes and times; None if unknown."""
    if work.inputs or not isinstance(work.query, str) or not work.query.startswith(_STATEMENT):
        return None
    name = work.query.removeprefix(_STATEMENT)

    def ask() -> list[str] | None:
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        facts = {str(row[0]).lower(): str(row[1]) for row in described}
        if facts.get("provider", "").lower() != "parquet" or facts.get("type") not in _TABLE_TYPES:
            return None
        return sorted(spark.table(name).inputFiles())

    urls = call_spark(spark, config, ask)
    if urls is None:
        return None
    return known_files(urls, config)


def known_files(urls: Sequence[str], config: Config) -> list[tuple[str, int, int]] | None:
    """Local files with sizes and times; None if one is elsewhere, or changed just now."""
    files = [_file_of(url) for url in urls]
    latest_ns = time.time_ns() - ms(config.recent_change) * 1_000_000
    known = [file for file in files if file is not None and file[2] < latest_ns]
    return known if len(known) == len(files) else None


def _file_of(url: str) -> tuple[str, int, int] | None:
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return None
    path = unquote(parts.path)
    try:
        status = os.stat(path)
    except OSError:
        return None
    return path, status.st_size, status.st_mtime_ns
