"""Connections of Airflow as settings of Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from millrace.errors import UserError
from millrace.schedulers.airflow_connections import spark_of


@dataclass
class Connection:
    """What Airflow gives of a connection."""

    conn_type: str
    conn_id: str = "lake"
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = None
    extra_dejson: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("connection", "settings"),
    [
        (Connection("spark", host="local[4]"), {"spark.master": "local[4]"}),
        (Connection("spark", host="yarn"), {"spark.master": "yarn"}),
        (Connection("spark", host="spark://a", port=7077), {"spark.master": "spark://a:7077"}),
        (Connection("spark", host="a", port=7077), {"spark.master": "spark://a:7077"}),
        (Connection("spark", host="spark://a:7077"), {"spark.master": "spark://a:7077"}),
        (Connection("spark_connect", host="a"), {"spark.remote": "sc://a:15002/"}),
        (Connection("spark_connect", host="sc://a", port=1), {"spark.remote": "sc://a:1/"}),
        (
            Connection(
                "spark_connect",
                host="a",
                login="me",
                password="t/;k",  # noqa: S106 - no secret
                extra_dejson={"use_ssl": True},
            ),
            {"spark.remote": "sc://a:15002/;user_id=me;token=t%2F%3Bk;use_ssl=true"},
        ),
    ],
)
def test_a_connection_means_a_master_or_a_connect_server(
    connection: Connection, settings: dict[str, str]
) -> None:
    assert spark_of(connection) == settings


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        (Connection("http", host="a", password="secret"), "is of type 'http'"),  # noqa: S106 - no secret
        (Connection("spark", host="lake", password="secret"), "names no master"),  # noqa: S106 - no secret
        (Connection("spark"), "names no master"),
    ],
)
def test_other_connections_are_refused_without_their_secrets(
    connection: Connection, said: str
) -> None:
    with pytest.raises(UserError, match=said) as error:
        spark_of(connection)

    assert "secret" not in str(error.value)
