"""The Spark that a connection of Airflow means. Pure.

Invariant: what a connection holds goes to Spark alone; no error repeats its password or url.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol
from urllib.parse import quote

from millrace.errors import UserError

CONNECT_PORT: Final = 15002
_MASTERS: Final = ("spark://", "k8s://", "local", "yarn")


class SparkConnection(Protocol):
    """The fields of a connection that are looked at."""

    conn_id: str
    conn_type: str
    host: str | None
    port: int | None
    login: str | None
    password: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """Its other fields."""


def spark_of(connection: SparkConnection) -> Mapping[str, str]:
    """Settings of a session, as Airflow's provider for Spark reads such a connection."""
    kind, host = connection.conn_type, (connection.host or "").rstrip("/")
    if kind == "spark_connect":
        return {"spark.remote": _connect_url(connection, host)}
    if kind == "spark":
        if connection.port is not None and "://" not in host:  # Of a url: spark://host:7077.
            host = f"spark://{host}"
        if not host.startswith(_MASTERS):
            raise UserError(
                f"connection {connection.conn_id!r} names no master of Spark as its host\n"
                f"  to fix: let its host begin with {', '.join(_MASTERS)}, or use the type "
                "spark_connect"
            )
        master = host if connection.port is None else f"{host}:{connection.port}"
        return {"spark.master": master}
    raise UserError(
        f"connection {connection.conn_id!r} is of type {kind!r}\n"
        "  to fix: give one of type 'spark' or 'spark_connect'"
    )


def _connect_url(connection: SparkConnection, host: str) -> str:
    """The url of a Connect server; the token is in it, as PySpark wants it."""
    host = host.removeprefix("sc://")
    extra = connection.extra_dejson
    given = {"user_id": connection.login, "token": connection.password}
    given["use_ssl"] = "true" if str(extra.get("use_ssl")).lower() == "true" else None
    shown = {name: quote(value, safe="") for name, value in given.items() if value}
    parts = "".join(f";{name}={value}" for name, value in shown.items())
    return f"sc://{host or 'localhost'}:{connection.port or CONNECT_PORT}/{parts}"
