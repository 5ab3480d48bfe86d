"""Settings that docs/deploy.md names, each on a cluster or a service of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.cluster import shipped_app
from tests.cluster.conftest import session_on, standalone_master
from tests.cluster.connect_kit import end_agents, serving
from tests.cluster.job_kit import wait_until
from tests.cluster.kit import all_values, values, write_files
from tests.cluster.owners_kit import served
from tests.lacking import lacking

import millrace as mr
from millrace.errors import OwnerUnreachable, UserError
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead

HOSTS = ("127.0.0.2", "127.0.0.3")
FILES = 4
SOURCES = Path(mr.__file__).parents[1]
QUICK = mr.Config().with_options(owner_retries_max=1, owner_backoff_ms=1)


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, str]:
    """A certificate of all addresses here that signs itself, as the variables want it."""
    if shutil.which("openssl") is None:
        lacking("openssl", "openssl is not installed")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ",".join(f"IP:127.0.0.{last}" for last in range(1, 5))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", f"subjectAltName={names}"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return {
        "MILLRACE_TLS_CERT": str(certificate),
        "MILLRACE_TLS_KEY": str(key),
        "MILLRACE_TLS_CA": str(certificate),
    }


def workers(folder: Path, env: dict[str, str] | None = None) -> list[dict[str, str]]:
    """Hosts of their own: an address, a folder, no workspace that they share."""
    return [
        {
            "SPARK_LOCAL_IP": host,
            "SPARK_WORKER_DIR": str(folder / f"work-{host}"),
            "MILLRACE_FOLDER": str(folder / f"host-{host}"),
            "MILLRACE_AGENT_HOST": host,
            **(env or {}),
        }
        for host in HOSTS
    ]


@pytest.fixture(autouse=True)
def _end_agents(tmp_path: Path) -> Iterator[None]:
    yield
    end_agents(tmp_path)


@pytest.mark.slow
@pytest.mark.spark
def test_agents_owner_and_tasks_talk_over_tls_at_the_addresses_that_are_set(
    tmp_path: Path, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_files(tmp_path / "in", FILES)
    for name, value in tls.items():
        monkeypatch.setenv(name, value)
    with standalone_master(workers(tmp_path, tls)) as master, session_on(master) as spark:
        ws = mr.open(tmp_path / "mill", spark)
        done = ws.shuffle(source, keys="k", partitions=2)
        assert values(done) == all_values(FILES)
        said = [json.loads(path.read_bytes()) for path in tmp_path.glob("host-*/*/agent.json")]
        where = {each["address"].rpartition(":")[0] for each in said}
        assert where == {f"grpc+tls://{host}" for host in HOSTS}

        job = ws.job("doubles")
        numbers = job.source("numbers", spark.range(20), partitions=2)
        doubled = numbers.map("double", lambda row: {"id": 2 * row["id"]}, schema="id bigint")
        doubled.sink_journal("out")
        assert job.run().state == "finished"
        assert sorted(ws.journals.read("out", 0).rows()["id"].to_pylist()) == [*range(0, 40, 2)]
        assert ws._joined_broker().address.startswith("grpc+tls://")
        ws.close()


def executors(spark: SparkSession) -> int:
    found: int = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    return found


@pytest.mark.slow
@pytest.mark.spark
def test_executors_that_go_when_they_are_idle_take_nothing_with_them(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", FILES)
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
    }
    config = mr.Config().with_options(reads_members_wait=240, reads_lease=60)
    with standalone_master(workers(tmp_path)) as master, session_on(master, conf=conf) as spark:
        ws = mr.open(tmp_path / "mill", spark, config=config)
        done = ws.shuffle(source, keys="k", partitions=2)
        assert done.report.ran == FILES
        wait_until(lambda: executors(spark) == 0, "executors stay")
        assert values(done) == all_values(FILES)
        assert ws.shuffle(source, keys="k", partitions=2).report.ran == 0

        job = ws.job("doubles")
        numbers = job.source("numbers", spark.range(20), partitions=2)
        doubled = numbers.map("double", lambda row: {"id": 2 * row["id"]}, schema="id bigint")
        doubled.sink_journal("read/out")
        assert job.run().state == "finished"
        wait_until(lambda: executors(spark) == 0, "executors stay")

        read = CoordinatedRead("sums", [Binding(name="all", prefix="read", key="id")])
        with ws.reads(read, members=1, on_spark=True) as session:
            checkpoint = session.next_checkpoint(240)
            assert checkpoint is not None
            rows = [row for batch in session.batches(0, checkpoint) for row in batch.to_pylist()]
            session.commit(checkpoint)
        assert sorted(row["id"] for row in rows) == [*range(0, 40, 2)]
        ws.close()


def test_serve_takes_no_wrong_token_and_nobody_who_does_not_trust_its_certificate(
    tmp_path: Path, tls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mill = tmp_path / "mill"
    with serving(mill, tls) as serve:
        assert f"at grpc+tls://127.0.0.4:{serve.port} " in serve.said
        hasty = QUICK.with_options(owner_start_ms_max=1_000)
        with mr.open(mill, config=hasty) as ws, pytest.raises(OwnerUnreachable):
            ws.journals.list()
        monkeypatch.setenv("MILLRACE_TLS_CA", tls["MILLRACE_TLS_CA"])
        with mr.open(mill) as ws:
            assert ws.journals.list() == ()
        monkeypatch.setenv("MILLRACE_TOKEN", "another token than this")
        with mr.open(mill) as ws, pytest.raises(UserError, match="refuses this workspace's token"):
            ws.journals.list()


def test_serve_with_a_token_of_its_own_leaves_none_in_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mill = tmp_path / "mill"
    with serving(mill, {"MILLRACE_TOKEN": "a-token-that-is-given"}):
        assert not (mill / "token").exists()
        monkeypatch.setenv("MILLRACE_TOKEN", "a-token-that-is-given")
        with mr.open(mill) as ws:
            assert ws.journals.list() == ()


def test_journals_are_left_to_serve_until_it_is_run_without_an_address(tmp_path: Path) -> None:
    mill = tmp_path / "mill"
    impatient = QUICK.with_options(owner_start_ms_max=50)
    with serving(mill) as serve:
        pass  # It is killed.
    with mr.open(mill, config=impatient) as ws, pytest.raises(OwnerUnreachable) as caught:
        ws.journals.list()
    assert f"left to `millrace serve` at {serve.address}" in str(caught.value)
    with served(mill):
        assert not (mill / "served.json").exists()
    with mr.open(mill) as ws:
        assert ws.journals.list() == ()
        assert ws._joined_broker().address != serve.address


def test_serve_on_a_taken_port_says_so(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as first:
        command = [sys.executable, "-c", "from millrace.cli.main import main; main()", "serve"]
        place = [str(tmp_path / "second"), "--host", "127.0.0.4", "--port", str(first.port)]
        tried = subprocess.run(
            [*command, *place], capture_output=True, text=True, check=False, timeout=240
        )
    assert tried.returncode == 1
    assert f"the owner cannot listen on 127.0.0.4:{first.port}" in tried.stderr
    assert not (tmp_path / "second" / "served.json").exists()


def bare_python(folder: Path) -> Path:
    """A Python that has what Millrace needs, and not Millrace."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    place = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (place / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    tried = subprocess.run(
        [python, "-c", "import pyarrow, duckdb, pyspark; import millrace"],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert "No module named 'millrace'" in tried.stderr
    return python


def package_files() -> list[Path]:
    found = [path for path in (SOURCES / "millrace").rglob("*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def as_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for file in package_files():
            made.write(file, file.relative_to(SOURCES))
    return path


def as_archive(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for file in package_files():
            made.add(file, file.relative_to(SOURCES))
    return path


def submit(tmp_path: Path, master: str, python: Path, *options: str) -> dict[str, Any]:
    """Run the application with executors of that Python; what it wrote down."""
    home, answers = os.path.dirname(pyspark.__file__), tmp_path / "answers.json"
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": str(python),
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    }
    confs = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    arguments = [tmp_path / "in", tmp_path / "mill", answers]
    program = [shipped_app.__file__, *map(str, arguments)]
    environment = {**os.environ, "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1"}
    running = subprocess.Popen(
        [os.path.join(home, "bin", "spark-submit"), "--master", master, *confs, *options, *program],
        env={name: value for name, value in environment.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, error = running.communicate(timeout=480)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, error[-6000:]
    found: dict[str, Any] = json.loads(answers.read_text())
    return found


def check_shipped(found: dict[str, Any], python: Path, *, path: str, native: bool) -> None:
    for each in found["tasks"]:
        prefix, file, has_kernels = each.split(" ")
        assert (prefix, has_kernels) == (str(python.parents[1]), str(native))
        assert f"/{path}/millrace/__init__.py" in file
    assert found["ran"] == FILES
    assert sorted(value for _, _, value in found["placed"]) == all_values(FILES)
    assert all(partition == expected for partition, expected, _ in found["placed"])
    assert (found["job"], found["out"]) == ("finished", [*range(0, 40, 2)])


@pytest.mark.slow
@pytest.mark.spark
def test_executors_get_the_package_as_a_zip_and_hash_without_compiled_kernels(
    tmp_path: Path,
) -> None:
    write_files(tmp_path / "in", FILES)
    python = bare_python(tmp_path / "bare")
    package = as_zip(tmp_path / "millrace.zip")
    with standalone_master(workers(tmp_path)) as master:
        found = submit(tmp_path, master, python, "--py-files", str(package))
    check_shipped(found, python, path="millrace.zip", native=False)


@pytest.mark.slow
@pytest.mark.spark
def test_executors_get_the_package_as_an_archive_with_compiled_kernels(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    python = bare_python(tmp_path / "bare")
    package = as_archive(tmp_path / "millrace.tar.gz")
    options = ["--archives", f"{package}#shipped"]
    options += ["--conf", "spark.executorEnv.PYTHONPATH=shipped"]
    with standalone_master(workers(tmp_path)) as master:
        found = submit(tmp_path, master, python, *options)
    check_shipped(found, python, path="shipped", native=True)
