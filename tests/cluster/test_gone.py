"""Spark, an owner or an executor is killed under work of each kind: the call ends, and says so.

| killed | dataset | job | reads | stream | `millrace` commands |
|---|---|---|---|---|---|
| Spark's JVM | here | here | here | here (1) | (2) |
| Spark Connect server | here | here | here | (1) | (2) |
| owner of journals | (3) | here, takeover (4) | here | here | here |
| Kafka | (3) | tests/kafka/test_gone_on_kafka.py | there | there | there |
| S3 server | tests/s3/test_gone_on_s3.py | (5) | (5) | (5) | there |
| executor | here | here | (6) | (7) | (2) |

1. `awaitTermination` is Spark's own call and raises Spark's own error at once; what is shown is
   that the query goes on when it is run again. On Connect the query is the server's, and ends with
   it.
2. No command needs a Spark of its own but `demo` and `job run`, which call `job.run()`.
3. A dataset reads files and no journals: it does not need them.
4. Whoever can own the journals takes them over: tests/cluster/test_job_kills.py.
5. Journals are refused in a bucket, so nothing but shuffles and datasets can lose one.
6. A member of a session is lost with its executor: tests/cluster/test_reads_members.py.
7. Its tasks just fetch rows of a driver's process, and Spark runs them elsewhere: tests/standalone.

The application is certainly in the middle when something is killed: it made a file and waits.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cluster.connect_kit import HOME, SERVER_HOST, _wait_until_it_answers, free_port
from tests.cluster.gone_app import SCHEMA
from tests.cluster.gone_kit import ALL_ROWS, HANG_S, Application, check_says_so, kill
from tests.cluster.owners_kit import served

import millrace as mr

pytestmark = pytest.mark.spark
COMMAND = [sys.executable, "-c", "from millrace.cli.main import main; main()"]


# Spark's JVM.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "kind"),
    [
        ("job", "SparkGone"),
        pytest.param("dataset", "SparkGone", marks=pytest.mark.slow),
        pytest.param("reads", "ReadsCutOff", marks=pytest.mark.slow),
    ],
)
def test_a_killed_jvm_ends_the_call_and_the_next_run_goes_on(
    tmp_path: Path, work: str, kind: str
) -> None:
    app = Application(work, tmp_path, {"on_spark": True})
    found = app.lose(lambda: kill(app.hear("JVM")))
    check_says_so(found, kind, "Spark went away", "Spark's JVM at")
    app.go_on()


@pytest.mark.slow
def test_a_killed_jvm_ends_a_stream_and_the_next_query_goes_on(tmp_path: Path) -> None:
    app = Application("stream", tmp_path)
    found = app.lose(lambda: kill(app.hear("JVM")))
    assert "rows" not in found
    app.go_on()


@pytest.mark.slow
@pytest.mark.parametrize(("work", "kind"), [("job", "SparkGone"), ("dataset", "SparkGone")])
def test_a_jvm_that_is_stopped_and_never_answers_ends_the_call(
    tmp_path: Path, work: str, kind: str
) -> None:
    app = Application(work, tmp_path)
    found = app.lose(lambda: os.kill(app.hear("JVM"), signal.SIGSTOP))
    check_says_so(found, kind, "Spark went away", "limit: 5 s (gone_after)")
    app.go_on()


# The Spark Connect server.
class ConnectServer:
    """A Spark Connect server on this machine alone, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port(SERVER_HOST)
        self.address = f"sc://{SERVER_HOST}:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = self.folder / "connect-server.log"
        settings = {
            "spark.connect.grpc.binding.address": SERVER_HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.bindAddress": SERVER_HOST,
            "spark.driver.host": SERVER_HOST,
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        command = [os.path.join(HOME, "bin", "spark-submit"), "--master", "local[2]"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "spark-internal"],
                env={**os.environ, "SPARK_HOME": HOME, "PYSPARK_PYTHON": sys.executable},
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        _wait_until_it_answers(self.process, self.port, log)

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ConnectServer]:
    found = ConnectServer(tmp_path)
    found.start()
    yield found
    found.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "kind"), [("job", "SparkGone"), ("dataset", "SparkGone"), ("reads", "ReadsCutOff")]
)
def test_a_killed_connect_server_ends_the_call_and_the_next_run_goes_on(
    tmp_path: Path, server: ConnectServer, work: str, kind: str
) -> None:
    options = {"on_spark": True, "spark": server.address}
    app = Application(work, tmp_path / "app", options)
    found = app.lose(server.kill)
    check_says_so(found, kind, "Spark went away", f"Connect server at {SERVER_HOST}:{server.port}")
    server.start()
    app.go_on()


# An executor.
@pytest.mark.slow
@pytest.mark.parametrize("work", ["job", "dataset"])
def test_a_killed_executor_is_replaced_by_spark_and_the_call_succeeds(
    tmp_path: Path, work: str
) -> None:
    root = str(Path(__file__).parents[2])
    app = Application(work, tmp_path, {"spark": "cluster"}, env={"PYTHONPATH": root})

    def kill_executor() -> None:
        kill(int((tmp_path / "executor").read_text()))
        (tmp_path / "go").touch()

    found = app.lose(kill_executor)
    assert found.get("rows") == ALL_ROWS, found


# The owner of the journals.
def serve_place() -> list[str]:
    """With an address of its own the journals are left to `millrace serve` for good."""
    return ["--host", SERVER_HOST, "--port", str(free_port(SERVER_HOST))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "kind"), [("job", "OwnerUnreachable"), ("reads", "ReadsCutOff"), ("stream", "")]
)
def test_a_killed_serve_ends_the_call_and_the_next_run_goes_on(
    tmp_path: Path, work: str, kind: str
) -> None:
    """Nobody else may own what was left to `millrace serve`."""
    mill, place = tmp_path / "app" / "mill", serve_place()
    options = {"spark": "none" if work == "reads" else "classic"}
    app = Application(work, tmp_path / "app", options)
    with served(mill, *place) as (owner, _):
        found = app.lose(owner.kill)
    if kind:
        check_says_so(found, kind, "millrace serve", "does not answer")
    else:  # Spark wraps what its source raised.
        assert "millrace serve" in found["text"], found["text"]
        assert "does not answer" in found["text"], found["text"]
    with served(mill, *place):
        app.go_on()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["journal", "ls", "MILL"],
        ["journal", "read", "MILL", "t/a", "--follow"],
        ["job", "ls", "MILL"],
    ],
    ids=" ".join,
)
def test_a_command_says_that_the_owner_is_gone(tmp_path: Path, command: list[str]) -> None:
    mill = tmp_path / "mill"
    rows = pa.table({"id": [1]}, schema=SCHEMA)
    with mr.open(mill) as ws:
        ws.journals.create("t/a", SCHEMA)
        ws.journals.append("t/a", rows)
    wanted = [*COMMAND, *(str(mill) if word == "MILL" else word for word in command)]
    with served(mill, *serve_place()) as (owner, _):
        asked = subprocess.Popen(wanted, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if "--follow" in wanted:
            assert asked.stdout is not None
            assert asked.stdout.readline().startswith("journal")  # It is in the middle.
        else:
            out, errors = asked.communicate(timeout=HANG_S)
            assert asked.returncode == 0, errors
            owner.kill()
            owner.wait()
            asked = subprocess.Popen(
                wanted, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        owner.kill()
        out, errors = asked.communicate(timeout=HANG_S)
    assert asked.returncode == 1, out
    assert "millrace serve" in errors
    assert "does not answer" in errors
    assert "to fix:" in errors
