"""`SparkSession.builder`, as PySpark's users write it, for a workspace of Millrace."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from millrace import workspace

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
        *,
        map: dict[str, Any] | None = None,  # noqa: A002 - as in PySpark
    ) -> SessionBuilder:
        """A setting of Spark, or "millrace.workspace": the folder of the workspace.

        Example:
            >>> builder = mr.SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
        """
        self._settings |= {} if key is None else {key: value}
        self._settings |= map or {}
        return self

    def getOrCreate(self) -> workspace.Workspace:  # noqa: N802 - Spark's spelling
        """Open the workspace, with a Spark session of these settings.

        Example:
            >>> builder = mr.SparkSession.builder.config("millrace.workspace", "./third-mill")
            >>> builder.getOrCreate().range(2).count()
            2
        """
        settings = dict(self._settings)
        folder = settings.pop(WORKSPACE, DEFAULT_WORKSPACE)
        if not settings:
            return workspace.open(folder, create=True)
        from millrace.spark.session import session_with  # noqa: PLC0415 - reading needs no Spark

        return workspace.open(folder, session_with(settings), create=True)


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

    builder: ClassVar[_Builder] = _Builder()
