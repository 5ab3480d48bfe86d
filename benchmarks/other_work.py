"""How much of the cores other programs use, also while a benchmark of ours runs.

Invariant: what this program and those that it started use is never counted as others' work, and
what another machine takes of our cores is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.cpu_seconds import cpu_by_kind

LOOK_S: Final = 1.0
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Look:
    """The clocks of all cores together at one moment, in ticks."""

    total: int
    idle: int
    own: float
    """Of this program and of those that it started, as far as they live or were waited for."""


def others_share(looks: Sequence[Look]) -> float:
    """Which share of the cores others used between the first look and the last one. Pure."""
    total = looks[-1].total - looks[0].total if looks else 0
    if total <= 0:
        return 0.0
    idle = looks[-1].idle - looks[0].idle
    # A program that ended takes its ticks along where nobody waited for it.
    own = sum(max(0.0, after.own - before.own) for before, after in pairwise(looks))
    return min(1.0, max(0.0, (total - idle - own) / total))


def busy_share() -> float:
    """Which share of the cores is in use now, while nothing of ours runs."""
    before = look()
    time.sleep(LOOK_S)
    return others_share([before, look()])


def look() -> Look:
    """The clocks as they are. What another machine took of our cores is no idle tick."""
    try:
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
    except OSError:
        return Look(0, 0, 0.0)
    fields = [int(value) for value in first.split()[1:9]]
    return Look(sum(fields), fields[3] + fields[4], sum(cpu_by_kind()) * _TICKS_A_SECOND)


@dataclass(slots=True)
class OtherWork:
    """Looks at the cores again and again while its block runs."""

    _looks: list[Look] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def share(self) -> float:
        """Which share of the cores others used so far."""
        return others_share(self._looks)

    def __enter__(self) -> Self:
        self._looks.append(look())
        self._thread = threading.Thread(target=self._watch, name="other-work", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._thread is not None, "entered"
        self._ended.set()
        self._thread.join()
        self._looks.append(look())

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._looks.append(look())
