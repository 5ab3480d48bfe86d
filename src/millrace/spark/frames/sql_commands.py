"""Statements of SQL that are no queries: they run at once, as Spark runs them.

Views of the workspace are made, described and dropped here. Everything else is Spark's, which sees
the views that the text names over their saved rows.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace.config import Config
from millrace.datasets.sql_views import SqlViews
from millrace.errors import UserError
from millrace.plan.nodes.node import Node
from millrace.plan.statements.parameters import Arguments
from millrace.spark.spark_analysis import spark_words
from millrace.spark.spark_presence import call_spark
from millrace.spark.versions.arrow_types import spark_types
from millrace.sql.spark_text import without_comments_before

_NAME: Final = r"(`(?:[^`]|``)+`|\w+)"
_MADE: Final = re.compile(
    rf"\s*create\s+(or\s+replace\s+)?temp(?:orary)?\s+view\s+{_NAME}\s+as\s+(.*)",
    re.IGNORECASE | re.DOTALL,
)
_DROPPED: Final = re.compile(rf"\s*drop\s+view\s+(?:if\s+exists\s+)?{_NAME}\s*;?\s*", re.IGNORECASE)
_DESCRIBED: Final = re.compile(
    rf"\s*desc(?:ribe)?\s+(?:table\s+)?(?:extended\s+)?{_NAME}\s*;?\s*", re.IGNORECASE
)
NOTHING: Final = pa.table({"result": pa.array([], pa.string())})
"""What a statement without a result gives: a dataset has at least one column."""


class SqlCommands:
    """Runs statements that are no queries. `rows_of` gives the saved rows of a plan."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        config: Config,
        views: SqlViews,
        rows_of: Callable[[Node], DataFrame],
    ) -> None:
        self._spark, self._config, self._views, self._rows_of = spark, config, views, rows_of

    def run(self, text: str, arguments: Arguments) -> pa.Table:
        """The result of a statement."""
        text = without_comments_before(text)
        if (made := _MADE.fullmatch(text)) is not None:
            relation = self._views.statement(made[3].strip().rstrip(";"), arguments)
            self._views.put(_plain(made[2]), relation, replace=made[1] is not None)
            return NOTHING
        if (dropped := _DROPPED.fullmatch(text)) is not None and self._views.drop(
            _plain(dropped[1])
        ):
            return NOTHING
        described = _DESCRIBED.fullmatch(text)
        if described is not None and self._views.has(_plain(described[1])):
            relation = self._views.table(described[1])
            return _columns(relation.schema)
        return self._on_spark(text, arguments)

    def _on_spark(self, text: str, arguments: Arguments) -> pa.Table:
        spark = self._spark()
        given: Any = {} if arguments is None else {"args": arguments}

        def result() -> pa.Table:
            with contextlib.ExitStack() as views:
                for name in self._views.named_in(text):
                    views.enter_context(self._shown(spark, name))
                frame = spark.sql(text, **given)
                return frame.toArrow() if frame.columns else NOTHING

        try:
            return call_spark(spark, self._config, result)
        except PySparkException as error:
            raise UserError(
                f"Spark refuses this statement: {spark_words(error)}\n  found: {text}\n"
                "  to fix: change what Spark names in its message"
            ) from error

    @contextlib.contextmanager
    def _shown(self, spark: SparkSession, name: str) -> Iterator[None]:
        """A view of the workspace as one of the session, unless that has one of this name."""
        taken = {table.name for table in spark.catalog.listTables() if table.isTemporary}
        if name.lower() in taken:
            yield
            return
        self._rows_of(self._views.table(f"`{name}`").output()).createTempView(name)
        try:
            yield
        finally:
            spark.catalog.dropTempView(name)


def _plain(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _columns(schema: pa.Schema) -> pa.Table:
    """What DESCRIBE says of columns."""
    types = spark_types(schema)
    return pa.table(
        {
            "col_name": [field.name for field in types],
            "data_type": [field.dataType.simpleString() for field in types],
            "comment": pa.nulls(len(types), pa.string()),
        }
    )
