"""Reads the plans of Spark Connect's DataFrames, so that datasets can be made of them.

A Connect DataFrame keeps its unresolved plan in this process. Files in it are read natively. Parts
that are not known here stay Spark's: Spark computes them, and their rows are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from sqlglot import exp

from millrace.config import Config
from millrace.datasets.sql_views import SqlViews
from millrace.errors import MillraceError
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.read_stage import ReadStage, leaves
from millrace.plan.nodes.scan import Scan
from millrace.plan.relation import Relation, relation_of
from millrace.plan.statements.connect_relations import ConnectPlan
from millrace.scan.splits import FileShape
from millrace.spark.frames.connect_plan_identity import (
    frame_of,
    plan_identity,
    with_fresh_numbers,
)
from millrace.spark.frames.query_frames import frame_scan
from millrace.spark.session_settings import session_mode
from millrace.spark.spark_presence import call_spark
from millrace.sql.expressions import as_user_error
from millrace.sql.sql_mode import current_mode, in_mode
from millrace.sql.text_limits import limits_of

_FORMATS: Final = frozenset({"parquet"})
"""Formats whose files are read with Spark's answer without a schema or options."""
_OPTIONS: Final = frozenset({"path"})


def is_connect_frame(frame: object) -> bool:
    """Whether this is a DataFrame of Spark Connect."""
    return type(frame).__module__.startswith("pyspark.sql.connect.")


def connect_relation(
    frame: Any,  # noqa: ANN401 - a DataFrame of Spark Connect
    config: Config,
    catalog: SqlViews,
    files: Callable[[Sequence[str], str], Node],
    rows: Callable[[pa.Table], Node],
    run: Callable[[Node], pa.Table],
) -> Relation:
    """The rows of a Connect DataFrame. `catalog` has no views: names are those of Spark."""
    sources = _Sources(frame, config, catalog, files, rows, run)
    message = frame._plan.plan(frame.sparkSession.client)  # noqa: SLF001 - there is no other way
    mode = session_mode(frame.sparkSession, config)
    with limits_of(config), in_mode(mode), as_user_error("from_spark(...)"):
        relation = ConnectPlan(catalog.context(), sources).relation(message)
    return relation.only_visible()


class _Sources:
    """The rows that the plan of a DataFrame begins with."""

    def __init__(
        self,
        frame: Any,  # noqa: ANN401 - as above
        config: Config,
        catalog: SqlViews,
        files: Callable[[Sequence[str], str], Node],
        rows: Callable[[pa.Table], Node],
        run: Callable[[Node], pa.Table],
    ) -> None:
        self._frame, self._config, self._catalog = frame, config, catalog
        self._files, self._rows, self._run = files, rows, run

    def files(self, form: str, paths: Sequence[str], options: Mapping[str, str]) -> Relation | None:
        """Files that are read natively; None if Spark has to read them.

        A path means what it means to Spark's server: only if both list the same local files are
        they read here.
        """
        if form.lower() not in _FORMATS or not paths or options.keys() - _OPTIONS:
            return None
        if current_mode().files_on_spark is not None:
            return None
        session = self._frame.sparkSession
        reader = session.read.format(form)
        urls = call_spark(session, self._config, lambda: reader.load(list(paths)).inputFiles())
        try:
            plan = self._files([_path(path) for path in paths], form.lower())
        except MillraceError:
            return None  # Spark may read what is refused here, or says better what is wrong.
        ours = {shape.file.path for leaf in leaves(plan) for shape in _shapes(leaf)}
        return relation_of(plan) if ours == {_local(url) for url in urls} else None

    def rows(self, table: pa.Table) -> Relation:
        """Rows of the client."""
        return relation_of(self._rows(table))

    def rows_now(self, relation: Relation) -> pa.Table:
        """The rows of a query that runs now."""
        return self._run(relation.output())

    def statement(
        self, text: str, arguments: Mapping[str, exp.Expression] | Sequence[exp.Expression]
    ) -> Relation:
        """A query over tables of Spark's catalog."""
        return self._catalog.statement(text, arguments)

    def on_spark(self, message: Any, reason: str) -> Relation:  # noqa: ANN401 - as above
        """A part of the plan that Spark computes."""
        own = with_fresh_numbers(message)
        part = frame_of(own, self._frame.sparkSession)
        recognise = plan_identity(part, own, self._config)
        return relation_of(frame_scan(part, None, self._config, reason, recognise))


def _shapes(leaf: Scan | ReadStage) -> Sequence[FileShape]:
    return leaf.source.shapes if isinstance(leaf, Scan) else ()


def _local(url: str) -> str:
    """The path of a file on a local disk; the url itself if it is elsewhere."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else url


def _path(path: str) -> str:
    return path.removeprefix("file://") if path.startswith("file:///") else path
