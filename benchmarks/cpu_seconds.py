"""CPU seconds of a program and of the processes that it started, by what they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

KINDS: Final = ("driver", "JVM", "workers")


def cpu_by_kind() -> tuple[float, ...]:
    """CPU seconds of this process, of the JVM below it, and of Python below that.

    Those of a process that ended are its parent's.
    """
    parents, kinds, ticks = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (folder / "stat").read_text(encoding="utf-8").rpartition(")")
        except OSError:  # It ended.
            continue
        number, fields = int(folder.name), after.split()
        parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
        kinds[number] = "JVM" if before.endswith("(java") else "workers"
    mine = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= more
    kinds[os.getpid()] = "driver"
    second = os.sysconf("SC_CLK_TCK")
    return tuple(sum(ticks[n] for n in mine if kinds[n] == kind) / second for kind in KINDS)
