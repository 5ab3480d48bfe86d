"""A whole Dagster on this machine: its daemon, with a queue of runs and a server of code."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.schedulers.environments import environment

from millrace.config import Config
from millrace.testing.managed_process import ManagedProcess

WAIT_S = 300
PATIENT = Config().with_options(kafka_start_ms_max=240_000)
HERE = Path(__file__).parent
DEFINITIONS = ("-f", str(HERE / "dags" / "dagster_defs.py"), "-d", str(HERE / "dags"))
"""The file, and the folder that its modules are found in."""
ENDS = ("SUCCESS", "FAILURE", "CANCELED")


class Dagster:
    """A running Dagster, and what a user asks of its command line."""

    def __init__(self, folder: Path, given: Mapping[str, str]) -> None:
        self._bin = environment("dagster") / "bin"
        self.home = folder
        (folder / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        self._env = dict(os.environ) | {
            "DAGSTER_HOME": str(folder),
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            **given,
        }

    def __enter__(self) -> Self:
        # Made by one process: two that begin at once would both make its tables.
        self._said_by_client("make", "tables")
        variables = [f"{name}={value}" for name, value in self._env.items()]
        self._daemon = ManagedProcess.start(
            ["env", *variables, str(self._bin / "dagster-daemon"), "run", *DEFINITIONS],
            log=str(self.home / "daemon.log"),
            is_ready=lambda: b"following daemons" in (self.home / "daemon.log").read_bytes(),
            config=PATIENT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._daemon.stop()

    def launch(self, asset: str) -> str:
        """Put a run of an asset into the queue; the run's id."""
        job = f"{asset}_job"
        self._called("dagster", "job", "launch", *DEFINITIONS, "-j", job)
        return self._said_by_client("newest", job)

    def wait_for_end(self, run: str) -> dict[str, Any]:
        """Wait until a run has ended: its status, log, events and metadata."""
        until = time.monotonic() + WAIT_S
        while (shown := json.loads(self._said_by_client("show", run)))["status"] not in ENDS:
            assert time.monotonic() < until, shown
            time.sleep(1)
        return dict(shown)

    def _said_by_client(self, what: str, of: str) -> str:
        return self._called("python", str(HERE / "dagster_client.py"), what, of)

    def _called(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout
