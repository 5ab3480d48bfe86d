"""One-node Apache Kafka on this host: fetched once with Maven, started on loopback, stopped.

The versions of Kafka and of all it needs are pinned by `pom.xml` beside this file. For tests and
for trying things out: one node without replicas may lose data.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from millrace.config import Config
from millrace.errors import MillraceError, Retriable, UserError
from millrace.storage.store import storage_errors
from millrace.testing.managed_process import ManagedProcess, free_ports, speaks_kafka

POM: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pom.xml")
HOST: Final = "127.0.0.1"
CACHE_VARIABLE: Final = "MILLRACE_CACHE"
_JVM: Final = ("-Xms256m", "-Xmx512m", "-XX:+UseG1GC", "-Djava.awt.headless=true")
_TRIES: Final = 3


def kafka_version() -> str:
    """The version of Kafka that the pom pins."""
    root = ET.parse(POM).getroot()  # noqa: S314 - our own file
    version = root.findtext("{*}properties/{*}kafka.version")
    assert version is not None, POM
    return version


def cache_folder(environment: Mapping[str, str]) -> str:
    """The folder of this user for fetched jars."""
    given = environment.get(CACHE_VARIABLE)
    if given:
        return given
    base = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "millrace")


def fetch_jars(folder: str, config: Config) -> str:
    """The folder with Kafka's jars, below `folder`, fetched with Maven if it is not there.

    Raises `UserError` if there is no Maven, and `Retriable` if it cannot get the jars.
    """
    home = os.path.join(os.path.abspath(folder), f"kafka-{kafka_version()}")
    libs = os.path.join(home, "libs")
    if os.path.isdir(libs):
        return libs
    maven = shutil.which("mvn")
    if maven is None:
        raise UserError(
            "Kafka's jars are not there, and neither is Maven, which fetches them\n"
            f"  looked for: {libs}, and mvn on the PATH\n  to fix: install Maven"
        )
    with storage_errors(f"making {home}"):
        os.makedirs(home, exist_ok=True)
        trial = tempfile.mkdtemp(dir=home)
    try:
        _run_maven(maven, trial, config)
        os.chmod(trial, 0o755)  # noqa: S103 - a folder of jars, as any other
        try:
            os.rename(trial, libs)
        except OSError:
            # Somebody else fetched them meanwhile.
            if not os.path.isdir(libs):
                raise
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return libs


def _run_maven(maven: str, target: str, config: Config) -> None:
    command = [maven, "-q", "-B", "-f", POM, "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={target}", "-DincludeScope=runtime"]
    limit = config.kafka_fetch_ms_max
    try:
        done = subprocess.run(  # noqa: S603 - Maven, found on the PATH
            command, capture_output=True, check=False, timeout=limit / 1000
        )
    except subprocess.TimeoutExpired as error:
        raise Retriable(
            f"Maven did not fetch Kafka's jars within {limit} ms (kafka_fetch_ms_max)\n"
            "  to fix: see whether its repository can be reached, and run this again"
        ) from error
    if done.returncode or not os.listdir(target):
        output = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[:1000]
        raise Retriable(
            f"Maven could not fetch Kafka's jars\n  it said: {output or 'nothing'}\n"
            "  to fix: see whether its repository can be reached, and run this again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaServer:
    """A running one-node Kafka."""

    address: str
    """Host and port."""
    folder: str
    process: ManagedProcess

    @property
    def url(self) -> str:
        """What `millrace.open(..., broker=...)` takes."""
        return f"kafka://{self.address}"


def start_kafka(
    libs: str,
    folder: str,
    *,
    config: Config,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    jvm: Sequence[str] = _JVM,
) -> KafkaServer:
    """Start Kafka on a folder, whose data stays; a new folder is formatted.

    Args:
        libs: the folder with its jars.
        folder: holds its data, its settings and its log.
        config: limits.
        port: where clients find it; any free one by default.
        settings: more lines for its settings.
        jvm: options for its Java.
    """
    java = shutil.which("java")
    if java is None:
        raise UserError("there is no java on the PATH, which Kafka runs on\n  to fix: install 17")
    root = os.path.abspath(folder)
    with storage_errors(f"making {root}"):
        os.makedirs(os.path.join(root, "data"), exist_ok=True)
    run = [java, *jvm, "-cp", os.path.join(libs, "*")]
    log = os.path.join(root, "kafka.log")
    for trial in range(_TRIES):
        client_port, controllers = free_ports(2)
        client_port = port or client_port
        path = _write_settings(root, client_port, controllers, settings or {})
        _format(run, root, path, log)
        try:
            process = ManagedProcess.start(
                [*run, "kafka.Kafka", path],
                log=log,
                is_ready=lambda at=client_port: speaks_kafka(HOST, at),  # type: ignore[misc]
                config=config,
            )
        except UserError:
            # Somebody may have taken a port in between.
            if trial + 1 == _TRIES or not _is_port_taken(log):
                raise
        else:
            return KafkaServer(address=f"{HOST}:{client_port}", folder=root, process=process)
    raise AssertionError


def _format(run: Sequence[str], root: str, settings: str, log: str) -> None:
    """Give a new data folder its identity."""
    if os.path.exists(os.path.join(root, "data", "meta.properties")):
        return
    identity = "bWlsbHJhY2Uta2Fma2EtMQ"
    command = [*run, "kafka.tools.StorageTool", "format", "-t", identity, "-c", settings]
    with open(log, "ab") as out:
        done = subprocess.run(  # noqa: S603 - java, found on the PATH
            command, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        raise UserError(
            f"Kafka could not format {root}\n  what it wrote: {log}\n"
            "  to fix: mend what it names, or give an empty folder"
        )


def _is_port_taken(log: str) -> bool:
    with open(log, encoding="utf-8", errors="replace") as file:
        return "Address already in use" in file.read()


def _write_settings(root: str, port: int, controllers: int, more: Mapping[str, str]) -> str:
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controllers}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controllers}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": os.path.join(root, "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "16777216",
        **more,
    }
    path = os.path.join(root, "server.properties")
    with storage_errors(f"writing {path}"), open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in lines.items())
    return path


def main() -> None:
    """Fetch the jars into a folder and say where they are: `python -m ...kafka_server FOLDER`."""
    try:
        print(fetch_jars(sys.argv[1], Config()))  # noqa: T201 - this is a command
    except MillraceError as error:
        print(error)  # noqa: T201
        sys.exit(1)


if __name__ == "__main__":
    main()
