"""`millrace agent`, run as a service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.transport.agent_kit import WORKSPACE, client, folders_at, own_folder

from millrace.config import Config
from millrace.errors import UserError
from millrace.execute.task_folders import Folders
from millrace.transport.agent import agent_endpoint

WAIT_S = 30.0
SERVICE = """
import os, sys
os.environ["MILLRACE_AGENT_HOST"] = "127.0.0.1"
from millrace.cli.main import main
sys.argv[1:1] = ["agent"]
main()
"""


class service:  # noqa: N801 - reads as what it does
    """`millrace agent` in a process of its own, ended by SIGTERM."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", SERVICE, *options], stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "serving" in line
        return line.split(" at ")[1].split()[0]

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0


def test_a_service_serves_every_workspace_below_its_folder(tmp_path: Path) -> None:
    with service("--folder", str(tmp_path)) as address:
        folder, used, store = own_folder(tmp_path, Config())

        assert used == address
        assert not store.exists(agent_endpoint.AGENT_FILE)  # No agent of its own was started.
        agents = client(address)
        assert agents.ping(folder).folder == folder
        agents.close()
        second = subprocess.run(
            [sys.executable, "-c", SERVICE, "--folder", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "runs already" in second.stderr
    assert not (tmp_path / agent_endpoint.AGENT_FILE).exists()


def test_a_service_with_a_token_of_its_own_wants_that_one(tmp_path: Path) -> None:
    token_file = tmp_path / "service-token"
    token_file.write_text("the service's own\n")
    folder_path = tmp_path / "folder"
    with service("--folder", str(folder_path), "--token-file", str(token_file)) as address:
        with pytest.raises(UserError, match="MILLRACE_TOKEN"):
            folders_at(folder_path).here(Config())
        allowed = Folders(
            path=str(folder_path),
            workspace_id=WORKSPACE,
            token="the service's own",  # noqa: S106
            loopback=True,
        )
        assert allowed.here(Config())[1] == address


def test_a_service_on_a_taken_port_says_so(tmp_path: Path) -> None:
    with service("--folder", str(tmp_path / "one")) as address:
        port = address.rpartition(":")[2]
        found = subprocess.run(
            [sys.executable, "-c", SERVICE, "--folder", str(tmp_path / "two"), "--port", port],
            capture_output=True,
            text=True,
            check=False,
        )

    assert found.returncode == 1
    assert "choose another port" in found.stderr
