"""Runs a command and ends it when the calling process is gone. A program of its own.

    python process_guard.py STOP_SECONDS COMMAND [ARGUMENT...]

It stops at the end of its standard input, which comes when the calling process closes it or is
killed. Then the command gets SIGTERM and, after a while, its whole process group SIGKILL. Ends with
the command's exit code. Imports nothing of Millrace, so that it starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import Final

_SET_PARENT_DEATH_SIGNAL: Final = 1


def _die_with_parent() -> None:
    """Linux ends the command even if this program itself is killed; elsewhere that is not there."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], stop_s: float) -> None:
    """Wait for the end of input, then end the command."""
    while os.read(0, 4096):
        pass
    child.terminate()
    try:
        child.wait(stop_s)
    except subprocess.TimeoutExpired:
        _kill_group(child.pid)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def main() -> None:
    """Run the command to its end."""
    stop_s, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(  # noqa: S603 - the command is what this program was asked to run
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_before_command,  # noqa: PLW1509 - no thread runs yet
        process_group=0,
    )
    threading.Thread(target=_end, args=(child, float(stop_s)), daemon=True).start()
    code = child.wait()
    # What the command itself started goes with it.
    _kill_group(child.pid)
    sys.exit(code if code >= 0 else 128 - code)


def _before_command() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()


if __name__ == "__main__":
    main()
