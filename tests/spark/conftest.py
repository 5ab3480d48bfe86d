"""A Spark session for the tests: classic or Connect, as MILLRACE_TEST_SPARK says."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

MODE = os.environ.get("MILLRACE_TEST_SPARK", "classic")

# One Spark process runs a hundred tests and keeps what their oracles broadcast. At Spark's default
# of 1 GiB it came near its end, and Spark's JVM exits when a task finds no memory.
os.environ.setdefault("SPARK_DRIVER_MEMORY", "2g")

OTHER_MODE = {"classic": "connect_only", "connect": "classic_only"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of the other kind of session: they run in that kind's own part."""
    others = [item for item in items if item.get_closest_marker(OTHER_MODE[MODE])]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def _connect() -> SparkSession:
    """A session with a server of its own, at a port of its own: runs side by side have one each."""
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    from millrace.testing.managed_process import free_ports

    port = free_ports(1)[0]
    setattr(DefaultChannelBuilder, "default_port", staticmethod(lambda: port))  # noqa: B010 - Spark has no setting
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.remote("local[2,3]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", str(port))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from millrace.spark.session import start_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, at start-up.
        session = _connect() if MODE == "connect" else start_session("millrace-tests", cores=2)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()
