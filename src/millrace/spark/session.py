"""The Spark session that Millrace starts when none was given, and what it asks of any session."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from millrace.config import Config
from millrace.errors import UserError
from millrace.spark.spark_presence import call_spark, is_connect, setting
from millrace.transport.agent.agent_launch import HOST_VARIABLE

JAVA_VERSION_MIN: Final = 17
JAVA_PACKAGE: Final = "openjdk-17-jre-headless"
TASK_TRIES: Final = 3
_RECORDS_PER_BATCH: Final = 65_536
_LOCAL: Final = r"local\[(\d+)(?:,\d+)?\]"
_masters: Final[WeakKeyDictionary[SparkSession, str]] = WeakKeyDictionary()


def start_session(
    app_name: str = "millrace", *, cores: int | None = None, apart: bool = False
) -> SparkSession:
    """Start Spark on this machine: all cores, loopback only, this interpreter in its workers.

    Args:
        app_name: its name on Spark's page.
        cores: how many tasks run at once.
        apart: see `launch_apart`.
    """
    check_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if apart:
        launch_apart({})
    slots = cores or len(os.sched_getaffinity(0))
    builder = (
        SparkSession.builder.master(f"local[{slots},{TASK_TRIES}]")
        .appName(app_name)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.python.worker.reuse", "true")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(_RECORDS_PER_BATCH))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    return builder.getOrCreate()


def check_java() -> None:
    """Raise unless a Java that Spark can use is found; say what was found and what to install."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    advice = f"  to fix: install Java {JAVA_VERSION_MIN} (Debian and Ubuntu: {JAVA_PACKAGE})"
    if java is None or not os.path.exists(java):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java on the PATH"
        raise UserError(f"Java is missing\n  found: {where}\n{advice}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    text = answer.stderr + answer.stdout
    version = java_version(text)
    if version is None or version < JAVA_VERSION_MIN:
        first = text.strip().splitlines()[0] if text.strip() else "no answer"
        raise UserError(f"Java is too old for Spark\n  found: {java}: {first}\n{advice}")


def java_version(text: str) -> int | None:
    """The major version that `java -version` printed; None if it printed none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major


def master(spark: SparkSession, config: Config) -> str:
    """The master, which a session keeps: it is asked for once."""
    if spark not in _masters:
        _masters[spark] = setting(spark, config, "spark.master")
    return _masters[spark]


def slots_of_executor(spark: SparkSession, config: Config) -> int:
    """How many tasks run at once in one executor; 1 if that is not said."""
    local = re.fullmatch(_LOCAL, master(spark, config))
    if local is not None:
        return int(local[1])
    cores = call_spark(spark, config, lambda: spark.conf.get("spark.executor.cores", "1"))
    return int(cores) if cores and cores.isdigit() else 1


def slots(spark: SparkSession, config: Config) -> int:
    """How many tasks run at once, by the master's name or as a plan says, on Connect too."""
    local = re.fullmatch(_LOCAL, master(spark, config))
    if local is not None:
        return int(local[1])
    query = "EXPLAIN SELECT * FROM range(1000000)"
    plan = call_spark(spark, config, lambda: spark.sql(query).collect()[0][0])
    match = re.search(r"splits=(?:Some\()?(\d+)", plan)
    return int(match[1]) if match else 1


def is_local(spark: SparkSession, config: Config) -> bool:
    """Whether all tasks run on this machine's loopback."""
    if is_connect(spark) and not _is_loopback(spark.client.host):
        return False
    name = master(spark, config)
    return name.startswith("local") or "//127." in name or "//localhost" in name


def is_reachable(spark: SparkSession, config: Config, environ: Mapping[str, str]) -> bool:
    """Whether tasks can connect to this process: a client of Connect has to say where."""
    return not is_connect(spark) or is_local(spark, config) or bool(environ.get(HOST_VARIABLE))


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "[::1]", "::1")


def launch_apart(settings: Mapping[str, Any]) -> None:
    """Launch the JVM in a process group of its own, if this process has none yet.

    A scheduler ends a task by signals to its whole group. The driver then has its workers finish
    what they are at, which a JVM that heard the signal too would not let them.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - a client of Connect has no JVM
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above

    if SparkContext._gateway is None:  # noqa: SLF001 - PySpark has no other way
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as above


def session_with(settings: Mapping[str, Any], *, apart: bool = False) -> SparkSession:
    """A session with these settings: the one of this process, or a new one."""
    if apart and "spark.remote" not in settings:
        launch_apart(settings)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
