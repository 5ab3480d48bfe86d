"""Bars in a notebook while map tasks run: a block of HTML below the cell, drawn again and again."""

from __future__ import annotations

import importlib
import sys
import threading
from dataclasses import dataclass
from html import escape
from typing import Any


def in_notebook() -> bool:
    """Whether this process shows its output in a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


@dataclass(slots=True)
class _Bar:
    title: str
    total: int
    completed: int = 0
    amount: str = ""

    def html(self) -> str:
        """The bar and what is beside it."""
        part = self.completed / self.total if self.total else 0.0
        return (
            "<div style='font-family: monospace; font-size: 12px'>"
            f"{escape(self.title)} <progress value='{part:.3f}' max='1'></progress> "
            f"{self.completed}/{self.total} {escape(self.amount)}</div>"
        )


class NotebookBars:
    """The bars of the stages that run now, with the calls of rich's `Progress`."""

    def __init__(self) -> None:
        self._bars: dict[int, _Bar] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._handle: Any = None

    def start(self) -> None:
        """Make room below the cell."""
        self._handle = _shown().display(_shown().HTML(""), display_id=True)

    def stop(self) -> None:
        """Leave nothing behind."""
        self._bars.clear()
        self._draw()

    def add_task(self, _: str, *, total: int, run: int, stage: int, amount: str) -> int:
        """A new bar."""
        with self._lock:
            self._next += 1
            self._bars[self._next] = _Bar(f"run {run}, stage {stage}", total, 0, amount)
            number = self._next
        self._draw()
        return number

    def update(self, number: int, *, completed: int, amount: str) -> None:
        """A bar that got on."""
        bar = self._bars.get(number)
        if bar is not None:
            bar.completed, bar.amount = completed, amount
            self._draw()

    def remove_task(self, number: int) -> None:
        """A bar whose stage is done."""
        with self._lock:
            self._bars.pop(number, None)
        self._draw()

    def _draw(self) -> None:
        if self._handle is None:
            return
        with self._lock:
            lines = [bar.html() for bar in self._bars.values()]
        self._handle.update(_shown().HTML("".join(lines)))


def _shown() -> Any:  # noqa: ANN401 - a module that only notebooks have
    return importlib.import_module("IPython.display")
