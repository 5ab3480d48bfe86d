"""A Spark Connect server before a standalone cluster, and clients as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyspark
from tests.cluster.conftest import standalone_master
from tests.standalone.cluster import hiding

HOME = os.path.dirname(pyspark.__file__)
WAIT_S = 240
SERVE_HOST = "127.0.0.4"
"""Of `millrace serve`; the Connect server and its executors have others."""
SERVER_HOST = "127.0.0.1"
EXECUTOR_HOSTS = ("127.0.0.2", "127.0.0.3")


def free_port(host: str) -> int:
    """One below those that the system gives out by itself, so that it is free again later."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port


@dataclass(frozen=True, slots=True)
class Server:
    """A Spark Connect server, and folders that are seen by it and by executors, or by it alone."""

    address: str
    folder: Path

    def mill(self, name: str) -> Path:
        """A workspace that executors do not see, where the machine can hide it from them."""
        return hidden_folder(self.folder) / name / "mill"

    def seen(self, name: str) -> Path:
        """A folder that all see."""
        found = self.folder / "seen" / name
        found.mkdir(parents=True, exist_ok=True)
        return found


def hidden_folder(folder: Path) -> Path:
    return folder / "driver"


@contextmanager
def connect_server(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A master, two workers and a Connect server before them, each a process."""
    hidden_folder(folder).mkdir()
    hosts = [
        {
            "SPARK_LOCAL_IP": host,
            "SPARK_WORKER_DIR": str(folder / f"work-{host}"),
            "MILLRACE_FOLDER": str(folder / f"host-{host}"),
            "MILLRACE_AGENT_HOST": host,
            "HIDDEN": str(hidden_folder(folder)),
            **(env or {}),
        }
        for host in EXECUTOR_HOSTS
    ]
    port = free_port(SERVER_HOST)
    log = folder / "connect-server.log"
    with standalone_master(hosts, cores=2, prefix=hiding()) as master, log.open("wb") as output:
        server = subprocess.Popen(
            _submit(master, port, folder),
            env={
                **os.environ,
                "SPARK_HOME": HOME,
                "SPARK_LOCAL_IP": SERVER_HOST,
                "PYSPARK_PYTHON": sys.executable,
                **(env or {}),
            },
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _wait_until_it_answers(server, port, log)
            yield Server(f"sc://{SERVER_HOST}:{port}", folder)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            end_agents(folder)


def _submit(master: str, port: int, folder: Path) -> list[str]:
    settings = {
        "spark.connect.grpc.binding.address": SERVER_HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": SERVER_HOST,
        "spark.driver.host": SERVER_HOST,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = [os.path.join(HOME, "bin", "spark-submit"), "--master", master]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    return [*command, "spark-internal"]


def end_agents(folder: Path) -> None:
    """End the agents of all hosts whose folders lie here."""
    for path in folder.glob("host-*/*/agent.json"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(json.loads(path.read_bytes())["pid"], signal.SIGKILL)


def _wait_until_it_answers(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        assert server.poll() is None, log.read_text()[-4000:]
        try:
            socket.create_connection((SERVER_HOST, port), timeout=5).close()
        except OSError:
            assert time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(0.05)
        else:
            return


class Serve:
    """`millrace serve` at one address, to be killed and started again."""

    def __init__(self, mill: Path, env: Mapping[str, str] | None = None) -> None:
        self.mill, self.port = mill, free_port(SERVE_HOST)
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[str] | None = None
        self.said = ""

    @property
    def address(self) -> str:
        return f"grpc://{SERVE_HOST}:{self.port}"

    def start(self) -> None:
        program = "from millrace.cli.main import main; main()"
        place = ["--host", SERVE_HOST, "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", str(self.mill), *place],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        if self.said.startswith("made a new workspace"):
            self.said = self.process.stdout.readline()
        if not self.said:
            raise AssertionError(self.process.communicate(timeout=60)[1][-4000:])

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate(timeout=60)

    def restart(self) -> None:
        self.kill()
        self.start()


@contextmanager
def serving(mill: Path, env: Mapping[str, str] | None = None) -> Iterator[Serve]:
    serve = Serve(mill, env)
    serve.start()
    try:
        yield serve
    finally:
        serve.kill()


class Client:
    """A process that has a `sc://` address and a workspace, and nothing else of Spark's."""

    def __init__(
        self, program: str, *arguments: object, env: Mapping[str, str] | None = None
    ) -> None:
        environment = {**os.environ, **(env or {})}
        for name in ("SPARK_LOCAL_IP", "SPARK_HOME", "MASTER", "SPARK_REMOTE"):
            environment.pop(name, None)
        self.heard: list[tuple[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, program, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def hear(self, word: str) -> Any:  # noqa: ANN401 - JSON
        """What comes with the next line that begins with a word; others are kept in `heard`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said, _, what = line.partition(" ")
            self.heard.append((said, json.loads(what)))
            if said == word:
                return self.heard[-1][1]
        _, error = self.process.communicate(timeout=60)
        raise AssertionError(f"it ended without {word}:\n{error[-6000:]}")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        """Wait for a good end."""
        _, error = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, error[-6000:]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=60)


def listening(pid: int) -> list[str]:
    """Addresses that a process listens on, TCP of both kinds, by what the system says."""
    mine = set()
    for handle in os.scandir(f"/proc/{pid}/fd"):
        try:
            mine.add(os.readlink(handle.path))
        except FileNotFoundError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            is_listening, inode = parts[3] == "0A", parts[9]
            if is_listening and f"socket:[{inode}]" in mine:
                found.append(parts[1])
    return found
