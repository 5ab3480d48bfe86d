"""`ws.system`: the state of a workspace as tables, and questions to them in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millrace.spark.workspace_runtime import WorkspaceRuntime

if TYPE_CHECKING:
    from millrace.datasets.dataset import Dataset
    from millrace.system.questions import SystemTables


class WorkspaceTables:
    """The system tables of a workspace; each is an attribute too. Made by `Workspace.system`.

    Example:
        >>> ws.system.sql("SELECT count(*) AS n FROM runs").column_names
        ['n']
    """

    def __init__(self, runtime: WorkspaceRuntime) -> None:
        """Use `Workspace.system`."""
        self._runtime = runtime

    @property
    def names(self) -> list[str]:
        """The tables there are.

        Example:
            >>> ws.system.names[:3]
            ['runs', 'stages', 'tasks']
        """
        return list(_names())

    def sql(self, question: str) -> pa.Table:
        """The answer to a query of DuckDB over the system tables, as of now.

        Example:
            >>> ws.system.sql("SELECT state FROM runs WHERE run = 1").to_pylist()
            [{'state': 'finished'}]
        """
        with self._tables() as tables:
            return tables.ask(question)

    def table(self, name: str, limit: int | None = None, **equal: Any) -> pa.Table:  # noqa: ANN401 - values of columns
        """The rows of a table, as of now.

        Args:
            name: one of `names`.
            limit: how many of its first rows are enough.
            equal: values of key columns: other rows need not be read.

        Example:
            >>> ws.system.table("stages", run=1).column("stage").to_pylist()
            [0]
        """
        from millrace.system.system_table import Asked  # noqa: PLC0415 - as below

        with self._tables() as tables:
            return tables.table(name, Asked(equal=equal, limit=limit))

    def dataset(self, name: str) -> Dataset:
        """A table as a dataset: its rows of now are saved in the workspace, for joins say.

        `ws.system.calls` is the same as `ws.system.dataset("calls")`.

        Example:
            >>> ws.system.runs.columns[:3]
            ['run', 'name', 'state']
        """
        return self._runtime.datasets.read_arrow_rows(self.table(name))

    def __getattr__(self, name: str) -> Dataset:
        if name in _names():
            return self.dataset(name)
        raise AttributeError(f"there is no system table {name!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_names()]

    @contextmanager
    def _tables(self) -> Iterator[SystemTables]:
        from millrace.system.questions import SystemTables  # noqa: PLC0415 - loads the engine
        from millrace.system.resting_workspace import RestingWorkspace  # noqa: PLC0415 - as above

        runtime = self._runtime
        runtime.home.look()
        with RestingWorkspace(runtime.store, runtime.config, runtime.ledger) as resting:
            yield SystemTables(resting)


def _names() -> Collection[str]:
    from millrace.system.catalog import TABLES  # noqa: PLC0415 - loads all that it reads

    return TABLES.keys()


class WorkspaceSystem:
    """What a workspace tells of itself. `Workspace` is one."""

    _runtime: WorkspaceRuntime

    @property
    def system(self) -> WorkspaceTables:
        """Runs, jobs, calls, journals and files of this workspace as tables.

        They are read where they lie, without Spark and without the owner of the journals.

        Example:
            >>> ws.system.table("journals").num_rows >= 0
            True
        """
        return WorkspaceTables(self._runtime)
