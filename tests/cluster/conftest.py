"""A Spark of several processes on this machine: executors that can be killed one by one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

Cluster = Callable[..., "contextmanager[SparkSession]"]


@contextmanager
def local_cluster(
    *, workers: int = 2, conf: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master(f"local-cluster[{workers},1,1024]")
        .appName("millrace-cluster")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.task.maxFailures", "4")
    )
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    for name, value in (env or {}).items():
        builder = builder.config(f"spark.executorEnv.{name}", value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        for name in [*(conf or {}), *(f"spark.executorEnv.{name}" for name in env or {})]:
            SparkSession.builder._options.pop(name, None)  # Spark keeps them for the next one.
        session.stop()


@pytest.fixture
def cluster() -> object:
    return local_cluster
