"""Applications that lose what they need, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import gone_app

GONE_MS = 5_000
"""The limit in the applications."""
HANG_S = 120
"""Who takes longer than this hangs; far above the limit, since machines are busy."""
START_S = 240
ALL_ROWS = list(range(gone_app.ROWS))


@dataclass
class Application:
    """Runs one work again and again over one workspace."""

    work: str
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    workspace: str = ""
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.workspace = self.workspace or str(self.folder / "mill")

    def start(self, gone_ms: int = GONE_MS) -> None:
        options = json.dumps({"gone_ms": gone_ms, **self.options})
        command = [sys.executable, gone_app.__file__, self.work, self.workspace]
        # Files, not pipes: what it started may outlive it and would keep pipes open.
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, str(self.folder), options],
                env={**os.environ, **self.env},
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )

    def wait_until_half(self) -> None:
        self._wait((self.folder / "half").exists, START_S)

    def hear(self, word: str, limit_s: float = START_S) -> Any:  # noqa: ANN401 - JSON
        """What comes with the line that begins with a word."""
        found: list[str] = []

        def is_said() -> bool:
            lines = self._out.read_text().splitlines(keepends=True)
            found[:] = [line for line in lines if line.startswith(f"{word} ") and line[-1] == "\n"]
            return bool(found)

        self._wait(is_said, limit_s)
        return json.loads(found[0].partition(" ")[2])

    def ended(self) -> dict[str, Any]:
        """How it ends; one that hangs is an error."""
        try:
            found: dict[str, Any] = self.hear("ENDED", HANG_S)
        finally:
            self.end()
        return found

    def end(self) -> None:
        """Leave no process of it behind, whatever became of it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)

    def lose(self, kill: Callable[[], object]) -> dict[str, Any]:
        """Kill something half-way; how the application ends then."""
        self.start()
        try:
            self.wait_until_half()
            kill()
            return self.ended()
        finally:
            self.end()

    def go_on(self) -> None:
        """Run it again: it comes to its end, with all rows."""
        (self.folder / "go").touch()
        self.start(gone_ms=1000 * HANG_S)  # Nothing goes away, and machines are busy.
        found = self.ended()
        assert found.get("rows") == ALL_ROWS, found

    @property
    def _out(self) -> Path:
        return self.folder / "stdout"

    @property
    def _errors(self) -> Path:
        return self.folder / "stderr"

    def _wait(self, is_so: Callable[[], bool], limit_s: float) -> None:
        assert self.process is not None
        until = time.monotonic() + limit_s
        while not is_so():
            is_over = self.process.poll() is not None
            assert not is_over or is_so(), f"it ended: {self._said()}"
            assert time.monotonic() < until, f"it hangs: {self._said()}"
            time.sleep(0.02)

    def _said(self) -> str:
        return self._out.read_text()[-3000:] + self._errors.read_text()[-6000:]


def check_says_so(found: dict[str, Any], kind: str, *words: str) -> None:
    """An error of this kind, which says what went away and that running again goes on."""
    assert kind in found["kinds"], found
    assert "PeerGone" in found["kinds"], found
    text = " ".join(found["text"].split())
    for word in words:
        assert word in text, found["text"]
    assert "to fix:" in text, found["text"]
    assert "goes on" in text, found["text"]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
