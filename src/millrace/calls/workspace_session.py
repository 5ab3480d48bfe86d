"""The rest of `SparkSession` for a workspace: names that Spark's own session answers.

Code that holds a workspace as `spark` finds every public name of PySpark's session: as the
workspace's own, as Spark's, or as an error that says why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millrace.spark.workspace_runtime import WorkspaceRuntime

if TYPE_CHECKING:
    from pyspark.sql import Column

    from millrace.datasets.dataset import Dataset

OF_SPARK: Final = frozenset(
    {
        *("addArtifact", "addArtifacts", "copyFromLocalToFs", "client", "conf", "dataSource"),
        *("addTag", "clearTags", "getTags", "removeTag"),
        *("interruptAll", "interruptOperation", "interruptTag", "profile"),
        *("clearProgressHandlers", "registerProgressHandler", "removeProgressHandler"),
        *("readStream", "sparkContext", "streams", "version"),
    }
)
"""What the session of the workspace answers."""

NOT_OFFERED: Final[dict[str, tuple[str, str]]] = {
    "newSession": (
        "a workspace has one session",
        "open another one: mr.open(path, spark.newSession()), or ws.spark.newSession()",
    ),
    "emptyDataFrame": (
        "rows without columns cannot be saved",
        "use createDataFrame([], schema), or ws.spark.emptyDataFrame()",
    ),
    "Builder": ("it is of the class", "use mr.SparkSession.builder"),
    "builder": ("it is of the class", "use mr.SparkSession.builder"),
    "active": ("it is of the class", "use mr.SparkSession.active()"),
    "getActiveSession": ("it is of the class", "use mr.SparkSession.getActiveSession()"),
}
"""By name: the reason, and what to do instead."""

_TABLE_FUNCTIONS: Final = frozenset(
    {
        *("collations", "python_worker_logs", "sql_keywords", "json_tuple", "stack"),
        *("explode", "explode_outer", "posexplode", "posexplode_outer"),
        *("inline", "inline_outer", "variant_explode", "variant_explode_outer"),
    }
)


class WorkspaceSession:
    """Names of PySpark's session. `Workspace` is one."""

    _runtime: WorkspaceRuntime

    @property
    def tvf(self) -> TableFunctions:
        """Spark's table-valued functions: `ws.tvf.explode(F.array(F.lit(1)))`.

        Example:
            >>> ws.tvf.range(3).count()
            3
        """
        return TableFunctions(self._runtime)

    @property
    def catalog(self) -> WorkspaceCatalog:
        """Spark's catalog, which knows the views of the workspace too.

        Example:
            >>> ws.view("orders", orders)
            >>> ws.catalog.tableExists("orders"), ws.catalog.dropTempView("orders")
            (True, True)
        """
        return WorkspaceCatalog(self._runtime)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever Spark's session has
        if name in OF_SPARK:
            return getattr(self._runtime.spark, name)
        reason = NOT_OFFERED.get(name)
        if reason is not None:
            raise AttributeError(
                f"Workspace has no {name}\n  found: {reason[0]}\n  to fix: {reason[1]}"
            )
        raise AttributeError(f"Workspace has no {name!r}")


class TableFunctions:
    """`ws.tvf`: table-valued functions of Spark as datasets."""

    def __init__(self, runtime: WorkspaceRuntime) -> None:
        self._runtime = runtime

    def range(
        self,
        start: int,
        end: int | None = None,
        step: int = 1,
        numPartitions: int | None = None,  # noqa: N803 - as in PySpark
    ) -> Dataset:
        """Numbers in a column `id`. The partitions are chosen here."""
        del numPartitions
        first, last = (0, start) if end is None else (start, end)
        text = f"SELECT * FROM range({int(first)}, {int(last)}, {int(step)})"  # noqa: S608 - of numbers
        return self._runtime.datasets.sql(text, None, {})

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a function of columns
        if name not in _TABLE_FUNCTIONS:
            raise AttributeError(f"there is no table-valued function {name!r}")

        def call(*columns: Column, **named: Column) -> Dataset:
            return self._runtime.datasets.table_function(name, [*columns, *named.values()])

        return call

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *_TABLE_FUNCTIONS})


class WorkspaceCatalog:
    """`ws.catalog`: Spark's catalog; temporary views are the workspace's first."""

    def __init__(self, runtime: WorkspaceRuntime) -> None:
        self._runtime = runtime

    def dropTempView(self, viewName: str) -> bool:  # noqa: N802, N803 - as in PySpark
        """Forget a view of the workspace, else one of Spark; False if there is none."""
        if self._runtime.datasets.views.drop(viewName):
            return True
        return self._runtime.spark.catalog.dropTempView(viewName)

    def tableExists(self, tableName: str, dbName: str | None = None) -> bool:  # noqa: N802, N803
        """Whether there is a view or a table of this name."""
        if dbName is None and self._runtime.datasets.views.has(tableName):
            return True
        return self._runtime.spark.catalog.tableExists(tableName, dbName)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever Spark's catalog has
        return getattr(self._runtime.spark.catalog, name)
