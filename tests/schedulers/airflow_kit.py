"""A whole Airflow on this machine: its scheduler, its DAG processor and its API server."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.schedulers.environments import environment

from millrace.config import Config
from millrace.testing.managed_process import ManagedProcess, answers, free_ports

WAIT_S = 300
HOST = "127.0.0.1"
DAGS = Path(__file__).parent / "dags"
PATIENT = Config().with_options(kafka_start_ms_max=240_000)


class Airflow:
    """A running Airflow, and what a user asks of its API."""

    def __init__(self, folder: Path, given: Mapping[str, str]) -> None:
        self._bin = environment("airflow") / "bin"
        self._port, log_port = free_ports(2)
        self._url = f"http://{HOST}:{self._port}"
        self.home = folder
        settings = {
            "CORE__DAGS_FOLDER": str(DAGS),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": "2",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__EXECUTION_API_SERVER_URL": f"{self._url}/execution/",
            "API__BASE_URL": self._url,
            "API__HOST": HOST,
            "API__PORT": str(self._port),
            "API__WORKERS": "1",
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "LOGGING__WORKER_LOG_SERVER_PORT": str(log_port),
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
        self._env = dict(os.environ) | {
            "AIRFLOW_HOME": str(folder),
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            **given,
        }
        self._token = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        subprocess.run(
            [str(self._bin / "airflow"), "db", "migrate"],
            env=self._env,
            check=True,
            capture_output=True,
            timeout=WAIT_S,
        )
        with self._stack as stack:
            for part in ("api-server", "scheduler", "dag-processor"):
                self._start(part)
            self._token = self._asked("GET", "/auth/token")["access_token"]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, part: str) -> None:
        command = ["env", *(f"{name}={value}" for name, value in self._env.items())]
        process = ManagedProcess.start(
            [*command, str(self._bin / "airflow"), part],
            log=str(self.home / f"{part}.log"),
            is_ready=lambda: part != "api-server" or answers(HOST, self._port),
            config=PATIENT,
        )
        self._stack.callback(process.stop)

    def trigger(self, dag: str) -> str:
        """Begin a run of a DAG, once Airflow has read it; the run's id."""
        until = time.monotonic() + WAIT_S
        while True:
            try:
                body = {"logical_date": None}
                return str(self._asked("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"])
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    raise
            assert time.monotonic() < until, f"Airflow does not know {dag}"
            time.sleep(0.5)

    def task(self, dag: str, run: str) -> dict[str, Any]:
        """The one task of a run: state, try_number and so on."""
        return self._asked("GET", f"{_task(dag, run)}")

    def wait_for(self, dag: str, run: str, *states: str) -> dict[str, Any]:
        """Wait until the task is in one of these states."""
        until = time.monotonic() + WAIT_S
        while (task := self.task(dag, run))["state"] not in states:
            assert time.monotonic() < until, f"{dag} is {task['state']}: {self.log(dag, run, 1)}"
            time.sleep(0.3)
        return task

    def set_state(self, dag: str, run: str, state: str) -> None:
        """As a user does with a click."""
        self._asked("PATCH", _task(dag, run), {"new_state": state})

    def clear(self, dag: str, run: str) -> None:
        """Let a task run again, as a user does with a click."""
        body = {"dry_run": False, "dag_run_id": run, "only_failed": False, "reset_dag_runs": True}
        self._asked("POST", f"/api/v2/dags/{dag}/clearTaskInstances", body)

    def xcom(self, dag: str, run: str, key: str) -> dict[str, Any]:
        """A value that the task left."""
        found = self._asked("GET", f"{_task(dag, run)}/xcomEntries/{key}")["value"]
        return dict(json.loads(found) if isinstance(found, str) else found)

    def log(self, dag: str, run: str, number: int) -> str:
        """The log of a try, as its file has it."""
        folder = self.home / "logs" / f"dag_id={dag}" / f"run_id={run}" / "task_id=paid"
        file = folder / f"attempt={number}.log"
        if not file.exists():
            return ""
        lines = file.read_text().splitlines()
        return "\n".join(str(json.loads(line).get("event")) for line in lines)

    def _asked(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        url = f"{self._url}{path}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            found: dict[str, Any] = json.loads(answer.read())
        return found


def _task(dag: str, run: str) -> str:
    return f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/paid"
