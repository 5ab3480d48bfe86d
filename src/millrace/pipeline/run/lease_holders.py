"""Names of the processes that hold the lease of a job, and whether such a process still lives.

Invariant: a process counts as dead only where this host can see that it is gone.
"""

from __future__ import annotations

import getpass
import os
import re
import secrets
import socket
import time
from enum import StrEnum
from typing import Final

from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.pipeline.core import hops

_PROCESS: Final = re.compile(r" on (\S+) \(process (\d+)\) since ")
REMOVAL: Final = "removal of large values by "
"""How a holder begins that soon gives the lease back; a run waits for it."""
_KEPT: set[str] = set()
"""Holders whose leases this process renews."""


class HolderLife(StrEnum):
    """Whether the process that holds a lease lives."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It runs on another host, or lets its lease run out."""


def who_am_i() -> str:
    """The user, host and id of this process, as text."""
    return f"{getpass.getuser()} on {socket.gethostname()} (process {os.getpid()})"


def running(broker: Broker, job: str) -> Lease | None:
    """The lease of the process that runs a job now; None if no process does."""
    name = hops.run_lease(job)
    return next((lease for lease in broker.leases(name) if lease.name == name), None)


def new_holder(doing: str = "") -> str:
    """A unique holder of a lease: with the same holder, another process would get it too."""
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return f"{doing}{who_am_i()} since {since}, {secrets.token_hex(4)}"


def keep(holder: str) -> None:
    """This process renews the holder's lease from now on."""
    _KEPT.add(holder)


def let_go(holder: str) -> None:
    """This process no longer renews the holder's lease."""
    _KEPT.discard(holder)


def life_of(holder: str) -> HolderLife:
    """Whether the process of a holder lives, as far as this host can see."""
    process = _PROCESS.search(holder)
    if process is None or process[1] != socket.gethostname():
        return HolderLife.UNKNOWN
    pid = int(process[2])
    if pid == os.getpid():
        return HolderLife.ALIVE if holder in _KEPT else HolderLife.UNKNOWN
    return HolderLife.ALIVE if is_running(pid) else HolderLife.DEAD


def is_running(pid: int) -> bool:
    """Whether a process of this host runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # A process that ended and that nobody has waited for yet is a zombie.
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return not os.path.isdir("/proc/self")
