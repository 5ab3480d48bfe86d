"""Spark's own connectors to tables: jars fetched with Maven, and a Spark that has them.

`python -m tests.connectors.connector_kit` fetches all below `build/` and says what is
missing if that cannot be done. There are no connectors for the Spark that the other tests use.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
DELTA, ICEBERG = "delta-4.3.1", "iceberg-1.12.0"
LOCK = ROOT / "requirements-spark-4.1.lock"
JARS = ROOT / "build" / "connectors"
MATRIX = ROOT / "build" / "matrix" / "spark-4.1"
"""The environment of `make test-matrix`, if there is one."""
OWN = ROOT / "build" / "connectors-spark-4.1"
NEEDED = ("pyspark", "pyarrow", "pandas", "numpy")
FETCH_S_MAX = 1200


def python() -> Path:
    """The Python of an environment with that Spark."""
    for folder in (MATRIX, OWN):
        if (folder / ".ready").exists():
            return folder / "bin" / "python"
    shutil.rmtree(OWN, ignore_errors=True)
    OWN.parent.mkdir(exist_ok=True)
    _call([sys.executable, "-m", "venv", str(OWN)])
    pins = re.findall(rf"^(?:{'|'.join(NEEDED)})==.*$", LOCK.read_text("utf-8"), re.MULTILINE)
    assert len(pins) == len(NEEDED), f"{LOCK} pins {pins}"
    _call([str(OWN / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *pins])
    (OWN / ".ready").touch()
    return OWN / "bin" / "python"


def jars(connector: str) -> Path:
    """The folder with a connector's jars."""
    made = JARS / connector
    if made.is_dir():
        return made
    maven = shutil.which("mvn")
    assert maven is not None, "there is no mvn on the PATH, which fetches Spark's connector"
    JARS.mkdir(parents=True, exist_ok=True)
    trial = Path(tempfile.mkdtemp(dir=JARS))
    pom = FOLDER / connector.partition("-")[0] / "pom.xml"
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    try:
        _call([*command, f"-DoutputDirectory={trial}", "-DincludeScope=runtime"])
        trial.rename(made)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return made


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, timeout=FETCH_S_MAX, check=False)
    said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-1000:]
    assert done.returncode == 0, f"{command[0]} failed: {said}"


class OtherSpark:
    """Runs SQL in a Spark that has its own connector."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path) -> None:
        self._process, self._scratch = process, scratch
        self._answers = 0

    def run(self, sql: str) -> None:
        """Run a statement."""
        self._ask(sql, "")

    def rows(self, sql: str, path: str = "") -> pa.Table:
        """The rows of a query; with a path, of what is there, in the format `sql`."""
        self._answers += 1
        into = str(self._scratch / f"{self._answers}.arrow")
        self._ask(sql, into, path)
        with pa.ipc.open_file(into) as file:
            return file.read_all()

    def _ask(self, sql: str, into: str, path: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps({'sql': sql, 'into': into, 'path': path})}\n")
        self._process.stdin.flush()
        self.hear(sql)

    def hear(self, what: str) -> None:
        """Wait for an answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"Spark ended: {what}"
        told = json.loads(line)
        assert "error" not in told, f"{what}: {told['error']}"


@contextmanager
def spark_with(connector: str, settings: Mapping[str, str], scratch: Path) -> Iterator[OtherSpark]:
    """A Spark of another version than that of the tests, with a connector and its settings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYTHON"))}
    program = [str(python()), str(FOLDER / "spark_program.py"), str(jars(connector)), str(scratch)]
    program.append(json.dumps(dict(settings)))
    with (
        (scratch / "spark.log").open("w") as log,
        subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=scratch,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            spark = OtherSpark(process, scratch)
            spark.hear("starting")
            yield spark
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # Spark's own process, too.


if __name__ == "__main__":
    python()
    for name in (DELTA, ICEBERG):
        jars(name)
