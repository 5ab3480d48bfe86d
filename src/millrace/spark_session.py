"""`SparkSession.builder`, as PySpark's users write it, for a workspace of Millrace."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

from millrace import workspace
from millrace.extras import check_extra
from millrace.names import path_text
from millrace.workspace import is_closed

WORKSPACE: Final = "millrace.workspace"
DEFAULT_WORKSPACE: Final = "mill"


class SessionBuilder:
    """Collects settings and opens a workspace, with the calls of PySpark's builder.

    Example:
        >>> builder = mr.SparkSession.builder.appName("orders").master("local[2]")
    """

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {}

    def appName(self, name: str) -> SessionBuilder:  # noqa: N802 - Spark's spelling
        """The name of the application on Spark's page.

        Example:
            >>> builder = mr.SparkSession.builder.appName("orders")
        """
        return self.config("spark.app.name", name)

    def master(self, master: str) -> SessionBuilder:
        """Where Spark runs.

        Example:
            >>> builder = mr.SparkSession.builder.master("local[4]")
        """
        return self.config("spark.master", master)

    def remote(self, url: str) -> SessionBuilder:
        """A Spark Connect server.

        Example:
            >>> builder = mr.SparkSession.builder.remote("sc://localhost")
        """
        return self.config("spark.remote", url)

    def config(
        self,
        key: str | None = None,
        value: Any = None,  # noqa: ANN401 - as in PySpark
        conf: Any = None,  # noqa: ANN401 - a SparkConf
        *,
        map: dict[str, Any] | None = None,  # noqa: A002 - as in PySpark
    ) -> SessionBuilder:
        """A setting of Spark, or "millrace.workspace": the folder of the workspace.

        Example:
            >>> builder = mr.SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
        """
        self._settings |= {} if key is None else {key: value}
        self._settings |= dict(conf.getAll()) if conf is not None else {}
        self._settings |= map or {}
        return self

    def enableHiveSupport(self) -> SessionBuilder:  # noqa: N802 - Spark's spelling
        """Spark's catalog is that of Hive.

        Example:
            >>> builder = mr.SparkSession.builder.enableHiveSupport()
        """
        return self.config("spark.sql.catalogImplementation", "hive")

    def create(self) -> workspace.Workspace:
        """Open the workspace once more, with views of its own; Spark's session is the same.

        Example:
            >>> builder = mr.SparkSession.builder.config("millrace.workspace", "./fourth-mill")
            >>> builder.create().range(2).count()
            2
        """
        return self._open(self._session())

    def getOrCreate(self) -> workspace.Workspace:  # noqa: N802 - Spark's spelling
        """The workspace that a builder has opened in this folder, else a new one, with Spark.

        Example:
            >>> builder = mr.SparkSession.builder.config("millrace.workspace", "./third-mill")
            >>> builder.getOrCreate().range(2).count()
            2
            >>> builder.getOrCreate() is builder.getOrCreate()
            True
        """
        session = self._session()
        opened = _opened.get(self._folder())
        if opened is None or is_closed(opened):
            return self._open(session)
        if session is not None and session != opened.spark:  # Without one, Spark is not started.
            return self._open(session)
        return _remembered(opened, self._folder())

    def _folder(self) -> str:
        text = path_text(self._settings.get(WORKSPACE, DEFAULT_WORKSPACE), WORKSPACE)
        return text if "://" in text else os.path.abspath(text)

    def _session(self) -> Any:  # noqa: ANN401 - a session of PySpark
        """A session with the settings that are given; None without any."""
        settings = {key: value for key, value in self._settings.items() if key != WORKSPACE}
        if not settings:
            return None
        check_extra("spark", "a session of Spark")
        from millrace.spark.session import session_with  # noqa: PLC0415 - reading needs no Spark

        return session_with(settings)

    def _open(self, session: Any) -> workspace.Workspace:  # noqa: ANN401 - as above
        folder = self._settings.get(WORKSPACE, DEFAULT_WORKSPACE)
        return _remembered(workspace.open(folder, session, create=True), self._folder())


_opened: Final[dict[str, workspace.Workspace]] = {}
"""The workspaces that builders have opened in this process, by folder; the last one is last."""


def _remembered(opened: workspace.Workspace, folder: str) -> workspace.Workspace:
    _opened.pop(folder, None)
    _opened[folder] = opened
    return opened


class _Builder:
    """A new builder for each use of `SparkSession.builder`."""

    def __get__(self, _instance: object, _owner: type) -> SessionBuilder:
        return SessionBuilder()


class SparkSession:
    """Stands for PySpark's class, so that only an import changes: its builder opens a workspace.

    Example:
        >>> from millrace import SparkSession
        >>> builder = SparkSession.builder.config("millrace.workspace", "./other-mill")
        >>> ws = builder.getOrCreate()
        >>> ws.range(3).count()
        3
    """

    Builder: ClassVar[type[SessionBuilder]] = SessionBuilder
    builder: ClassVar[_Builder] = _Builder()

    @staticmethod
    def getActiveSession() -> workspace.Workspace | None:  # noqa: N802 - Spark's spelling
        """The workspace that a builder gave last, as long as it is open; else None.

        Example:
            >>> opened = mr.SparkSession.builder.getOrCreate()
            >>> mr.SparkSession.getActiveSession() is opened
            True
        """
        last = next(reversed(_opened.values()), None)
        return None if last is None or is_closed(last) else last

    @staticmethod
    def active() -> workspace.Workspace:
        """The workspace that a builder gave last, or the one of a new builder.

        Example:
            >>> mr.SparkSession.active().range(2).count()
            2
        """
        return SparkSession.getActiveSession() or SessionBuilder().getOrCreate()
