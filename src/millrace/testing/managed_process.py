"""Broker processes started by this process: ready when they answer, gone when they are stopped.

Invariant: a process ends with the one that started it, however that one ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from millrace.config import Config
from millrace.errors import Retriable, UserError
from millrace.testing import process_guard

_TAIL_BYTES: Final = 2000
_LOOK_S: Final = 0.05
_CONNECT_S: Final = 1.0
_GUARD_S: Final = 5.0
# The request ApiVersions, version 0: its number, version, an id to be echoed, no client's name.
_API_VERSIONS: Final = struct.pack(">hhih", 18, 0, 7, -1)


class ManagedProcess:
    """A command under a guard, in a process session of its own."""

    def __init__(self, guard_process: subprocess.Popen[bytes], log: str, config: Config) -> None:
        """Use `ManagedProcess.start`."""
        self._guard = guard_process
        self._log = log
        self._config = config

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log: str,
        is_ready: Callable[[], bool],
        config: Config,
    ) -> Self:
        """Start a command, whose output goes to a file, and wait until it is ready.

        Raises `UserError` if it ends before it is, and `Retriable` if it takes too long.
        """
        stop_s = config.kafka_stop_ms_max / 1000
        with open(log, "ab") as out:
            try:
                process = subprocess.Popen(  # noqa: S603 - what the user asked for
                    [sys.executable, "-I", process_guard.__file__, str(stop_s), *command],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise UserError(
                    f"cannot start {command[0]}\n  {error}\n"
                    "  to fix: install it, or name another one"
                ) from error
        made = cls(process, log, config)
        try:
            made._wait(is_ready, command)
        except BaseException:
            made.stop()
            raise
        return made

    @property
    def pid(self) -> int:
        """The guard's process."""
        return self._guard.pid

    def is_running(self) -> bool:
        """Whether the command has not ended."""
        return self._guard.poll() is None

    def wait(self, timeout_s: float | None) -> int | None:
        """Wait for the command to end by itself; its exit code, or None if it has not."""
        try:
            return self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End the command: asked first, killed after `kafka_stop_ms_max`."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(self._config.kafka_stop_ms_max / 1000 + _GUARD_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the guard as by SIGKILL, and the command with it."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._guard.pid, signal.SIGKILL)
        self._guard.wait()

    def tail(self) -> str:
        """The last lines that the command wrote."""
        with open(self._log, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace").strip()
        return text or "nothing"

    def _wait(self, is_ready: Callable[[], bool], command: Sequence[str]) -> None:
        deadline = time.monotonic() + self._config.kafka_start_ms_max / 1000
        while not is_ready():
            if not self.is_running():
                raise UserError(
                    f"{command[0]} ended before it was ready, with code {self._guard.returncode}\n"
                    f"  it wrote: {self.tail()}\n  all of it: {self._log}\n"
                    "  to fix: mend what it names, and start it again"
                )
            if time.monotonic() > deadline:
                raise Retriable(
                    f"{command[0]} was not ready within {self._config.kafka_start_ms_max} ms "
                    f"(kafka_start_ms_max)\n  it wrote: {self.tail()}\n  all of it: {self._log}\n"
                    "  to fix: start it again, or raise kafka_start_ms_max"
                )
            time.sleep(_LOOK_S)


def answers(host: str, port: int) -> bool:
    """Whether a process accepts connections there."""
    try:
        with socket.create_connection((host, port), _CONNECT_S):
            return True
    except OSError:
        return False


def speaks_kafka(host: str, port: int) -> bool:
    """Whether a broker there answers ApiVersions, the first call of every Kafka client."""
    try:
        with socket.create_connection((host, port), _CONNECT_S) as connection:
            connection.sendall(len(_API_VERSIONS).to_bytes(4, "big") + _API_VERSIONS)
            return len(connection.recv(8, socket.MSG_WAITALL)) == len(b"size" + b"echo")
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Free ports of the loopback; another process may take them before the caller does."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports.append(listener.getsockname()[1])
        return ports
