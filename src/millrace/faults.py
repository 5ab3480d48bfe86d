"""Named points at which a test can make this process fail.

`fault("shuffle.write.before_index")` does nothing unless the environment variable `MILLRACE_FAULT`
names that point. Then the process is killed on the spot, as by SIGKILL, or, with `name:action`,
does what the action says. `name@2` is that point in stage 2 alone. `@path` is a file that says all
this, so that a process can be armed while it runs. `millrace.testing.fault_injection` has the other
half.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Final

VARIABLE: Final = "MILLRACE_FAULT"
ONCE_VARIABLE: Final = "MILLRACE_FAULT_ONCE"


def fault(point: str, stage: int | None = None) -> None:
    """Fail here if the environment asks for it. Costs one dictionary look-up otherwise."""
    armed = os.environ.get(VARIABLE)
    if armed is None:
        return
    if armed.startswith("@"):
        armed = _read(armed[1:])
    name, _, action = armed.partition(":")
    if name in (point, f"{point}@{stage}") and _first_time():
        _act(action or "kill")


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _first_time() -> bool:
    """Whether this is the first process to reach the point, where the test wants only one."""
    marker = os.environ.get(ONCE_VARIABLE)
    if marker is None:
        return True
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _act(action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise OSError(28, "No space left on device")
    elif action.startswith("sleep="):
        time.sleep(float(action.removeprefix("sleep=")))
    else:
        raise ValueError(f"unknown fault action {action!r}; known: kill, raise, sleep=SECONDS")
