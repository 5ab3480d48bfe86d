"""The S3 server is killed under a dataset and before a command: the call ends, and says so.

The table of all that can be killed under all kinds of work is in tests/cluster/test_gone.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.gone_kit import HANG_S, Application, check_says_so
from tests.s3.s3_kit import BUCKET, Server, credentials, make_bucket, start

COMMAND = [sys.executable, "-c", "from millrace.cli.main import main; main()"]


class KilledServer:
    """A server of this test alone, which keeps its objects on disk and can be started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.objects = folder / "server", folder / "objects"
        self.folder.mkdir()
        self.objects.mkdir()
        self.running: Server = start(self.folder, objects=self.objects)
        self.port = self.running.port
        self.env = credentials(self.running.endpoint)

    def kill(self) -> None:
        self.running.process.kill()

    def restart(self) -> None:
        self.running = start(self.folder, port=self.port, objects=self.objects)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KilledServer]:
    found = KilledServer(tmp_path)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    make_bucket(found.running.endpoint)
    yield found
    found.kill()


@pytest.mark.slow
@pytest.mark.spark
def test_a_killed_server_ends_a_dataset_and_the_next_run_goes_on(
    server: KilledServer, tmp_path: Path
) -> None:
    app = Application("dataset", tmp_path / "app", workspace=f"s3://{BUCKET}/mill")

    def lost() -> None:
        server.kill()
        (app.folder / "go").touch()  # The task goes on, and finds nobody to write to.

    found = app.lose(lost)
    check_says_so(found, "S3Unreachable", f"127.0.0.1:{server.port}")
    server.restart()
    app.go_on()


@pytest.mark.slow
@pytest.mark.spark
def test_a_dataset_whose_tasks_do_not_notice_ends_by_the_sign_of_life(
    server: KilledServer, tmp_path: Path
) -> None:
    app = Application("dataset", tmp_path / "app", workspace=f"s3://{BUCKET}/mill")
    found = app.lose(server.kill)
    check_says_so(found, "S3Unreachable", f"127.0.0.1:{server.port}")
    server.restart()
    app.go_on()


@pytest.mark.slow
def test_a_command_says_that_the_server_is_gone(server: KilledServer) -> None:
    command = [*COMMAND, "shuffle", "ls", f"s3://{BUCKET}/mill"]
    server.kill()
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1, done.stdout
    assert f"127.0.0.1:{server.port}" in done.stderr
    assert "to fix:" in done.stderr
