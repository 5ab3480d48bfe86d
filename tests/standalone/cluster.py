"""A standalone Spark of this machine's own: a master, and workers that are hosts of their own.

A host has an address, a folder and an environment of its own. Where the machine allows it, it sees
neither the driver's folder nor those of other hosts, as if they lay on disks elsewhere. A host that
is killed is killed whole: worker, executors, Python workers and agents.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyspark
from tests.cluster.job_kit import wait_until

HOSTS: Final = 3
_MARK: Final = "MILLRACE_TEST_HOST"
_HOME: Final = os.path.dirname(pyspark.__file__)
_SPARK_CLASS: Final = os.path.join(_HOME, "bin", "spark-class")
_DEPLOY: Final = "org.apache.spark.deploy"
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
_HIDING: Final = 'for folder in $HIDDEN; do mount -t tmpfs none "$folder"; done; exec "$@"'


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie: what is the driver's, what all see, and a folder for each host."""

    root: Path
    is_shared: bool

    @property
    def driver(self) -> Path:
        """Seen by the driver alone, unless all share it."""
        return self.root / "driver"

    @property
    def mill(self) -> Path:
        """The workspace."""
        return self.driver / "mill"

    @property
    def inputs(self) -> Path:
        """Seen by all."""
        return self.root / "inputs"

    def host(self, number: int) -> Path:
        """A host's own."""
        return self.root / f"host-{number}"

    def hidden_from(self, number: int) -> list[Path]:
        """What a host does not see."""
        others = [self.host(each) for each in range(HOSTS) if each != number]
        return others if self.is_shared else [self.driver, *others]

    def finished_tasks(self) -> int:
        """How many map outputs lie anywhere."""
        pattern = "shuffle/*/*/*/*/index.bin"
        return sum(1 for _ in self.root.glob(f"host-*/*/{pattern}")) + sum(
            1 for _ in self.mill.glob(pattern)
        )


@dataclass(slots=True)
class Host:
    """One worker of Spark with all that runs beside it."""

    layout: Layout
    number: int
    master: str
    address: str
    prefix: tuple[str, ...] = ()
    """What a command of this host begins with."""
    env: Mapping[str, str] = field(default_factory=dict)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def mark(self) -> str:
        """What tells its processes from all others."""
        return f"{self.layout.root}:{self.number}"

    def environment(self) -> dict[str, str]:
        """Of every process of this host."""
        hidden = " ".join(map(str, self.layout.hidden_from(self.number)))
        folder = {} if self.layout.is_shared else {"MILLRACE_FOLDER": str(self._folder / "mill")}
        return {
            **os.environ,
            "SPARK_HOME": _HOME,
            "SPARK_LOCAL_IP": self.address,
            "SPARK_WORKER_DIR": str(self._folder / "work"),
            "MILLRACE_AGENT_HOST": self.address,
            "HIDDEN": hidden,
            _MARK: self.mark,
            **folder,
            **self.env,
        }

    def start(self) -> None:
        """Start its worker, which joins the master by itself."""
        self._folder.mkdir(exist_ok=True)
        worker = [_SPARK_CLASS, f"{_DEPLOY}.worker.Worker", "--host", self.address]
        worker += ["--webui-port", "0", "--cores", "1", "--memory", "1g"]
        worker += ["--work-dir", str(self._folder / "work"), self.master]
        self.run(worker, "worker")

    def run(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        """Start a process of this host."""
        with (self.layout.root / f"{name}-{self.number}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.prefix, *hiding(), *command],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def kill(self) -> None:
        """Everything of it at once, as when the power goes; its disk stays as it is."""
        # What forks while it is looked for is found in the next round.
        wait_until(lambda: not _kill_all(processes(self.mark)), "the end of all its processes")
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def executors(self) -> list[int]:
        """Its executors, of whatever application."""
        return [pid for pid in processes(self.mark) if _EXECUTOR in command_of(pid)]

    def kill_executor(self) -> bool:
        """Kill one; False if there is none."""
        return bool(_kill_all(self.executors()[:1]))

    @property
    def _folder(self) -> Path:
        return self.layout.host(self.number)


class Cluster:
    """A master and its hosts."""

    def __init__(
        self,
        root: Path,
        *,
        is_shared: bool,
        addresses: Sequence[str] = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"),
        prefixes: Sequence[tuple[str, ...]] = ((),) * (HOSTS + 1),
        env: Mapping[str, str] | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.layout = Layout(root, is_shared)
        for folder in (self.layout.driver, self.layout.inputs):
            folder.mkdir(parents=True)
        for number in range(HOSTS):
            self.layout.host(number).mkdir()
        self.address = addresses[0]
        self.prefix = prefixes[0]
        port = _free_port()
        self.master = f"spark://{self.address}:{port}"
        self._env = dict(env or {})
        self._conf = dict(conf or {})
        self._process = self._start_master(port)
        self.hosts = [
            Host(self.layout, number, self.master, address, prefix, self._env)
            for number, (address, prefix) in enumerate(
                zip(addresses[1:], prefixes[1:], strict=True)
            )
        ]
        for host in self.hosts:
            host.start()

    @property
    def driver_environment(self) -> dict[str, str]:
        """Of an application's driver."""
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "SPARK_LOCAL_IP": self.address,
            "MILLRACE_AGENT_HOST": self.address,
            "MILLRACE_TEST_MASTER": self.master,
            "MILLRACE_TEST_CONF": json.dumps(self._conf),
            _MARK: f"{self.layout.root}:driver",
        }

    def close(self) -> None:
        """End everything."""
        for host in self.hosts:
            host.kill()
        wait_until(lambda: not _kill_all(processes(f"{self.layout.root}:driver")))
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _start_master(self, port: int) -> subprocess.Popen[bytes]:
        master = [_SPARK_CLASS, f"{_DEPLOY}.master.Master", "--host", self.address]
        master += ["--webui-port", "0", "--port", str(port)]
        env = {**os.environ, "SPARK_HOME": _HOME, "SPARK_LOCAL_IP": self.address}
        with (self.layout.root / "master.log").open("wb") as log:
            return subprocess.Popen(
                [*self.prefix, *master],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def processes(mark: str) -> list[int]:
    """The living processes that carry a host's mark in their environment."""
    wanted = f"{_MARK}={mark}".encode()
    return [
        int(entry.name)
        for entry in os.scandir("/proc")
        if entry.name.isdigit() and wanted in _environment(entry.path).split(b"\0")
    ]


def command_of(pid: int) -> str:
    """What a process was started with; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@functools.cache
def hiding() -> tuple[str, ...]:
    """What hides folders from a command, where the machine allows it; else nothing."""
    if shutil.which("unshare") is None:
        return ()
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    command += ["sh", "-e", "-c", _HIDING, "sh"]
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            [*command, "true"],
            env={**os.environ, "HIDDEN": folder},
            capture_output=True,
            check=False,
        )
    return tuple(command) if tried.returncode == 0 else ()


@contextlib.contextmanager
def standalone(root: Path, *, is_shared: bool, env: Mapping[str, str]) -> Iterator[Cluster]:
    """A cluster on loopback."""
    cluster = Cluster(root, is_shared=is_shared, env=env)
    try:
        yield cluster
    finally:
        cluster.close()


def _environment(path: str) -> bytes:
    try:
        return Path(path, "environ").read_bytes()  # Empty of those that have ended.
    except OSError:
        return b""


def _kill_all(pids: Sequence[int]) -> Sequence[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if pids:
        time.sleep(0.01)
    return pids


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
