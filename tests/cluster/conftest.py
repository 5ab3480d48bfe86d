"""A Spark of several processes on this machine: executors that can be killed one by one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyspark
import pytest
from pyspark.sql import SparkSession


@contextmanager
def standalone_master(
    worker_environments: Sequence[Mapping[str, str]],
    *,
    cores: int = 1,
    prefix: Sequence[str] = (),
) -> Iterator[str]:
    """A master and workers as processes of their own, each worker with its own environment.

    One with `SPARK_LOCAL_IP` counts as a host of its own. Workers' commands begin with `prefix`.
    """
    home = os.path.dirname(pyspark.__file__)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    base = {**os.environ, "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1"}
    spark_class = [os.path.join(home, "bin", "spark-class")]
    deploy = "org.apache.spark.deploy"
    master_at = ["--host", "127.0.0.1", "--webui-port", "0", "--port", str(port)]
    commands = [([*spark_class, f"{deploy}.master.Master", *master_at], base)]
    for environment in worker_environments:
        host = environment.get("SPARK_LOCAL_IP", "127.0.0.1")
        worker = [*prefix, *spark_class, f"{deploy}.worker.Worker"]
        worker += ["--host", host, "--webui-port", "0"]
        worker += ["--cores", str(cores), "--memory", "1g"]
        worker += ["--work-dir", environment["SPARK_WORKER_DIR"], master]
        commands.append((worker, {**base, **environment}))
    processes = []
    try:
        for command, environment in commands:
            log = subprocess.DEVNULL
            processes.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        yield master
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def session_on(master: str, *, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master(master)
        .appName("millrace-cluster")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.task.maxFailures", "4")
    )
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        for name in conf or {}:
            SparkSession.builder._options.pop(name, None)  # Spark keeps them for the next one.
        session.stop()


@contextmanager
def local_cluster(
    *, workers: int = 2, conf: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    everything = dict(conf or {})
    everything |= {f"spark.executorEnv.{name}": value for name, value in (env or {}).items()}
    with session_on(f"local-cluster[{workers},1,1024]", conf=everything) as session:
        yield session


@pytest.fixture
def cluster() -> object:
    return local_cluster


@pytest.fixture
def standalone() -> object:
    return standalone_master


@pytest.fixture
def connected() -> object:
    return session_on
