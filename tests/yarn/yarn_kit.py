"""A YARN of one host, of Hadoop's own jars, and applications that are submitted to it.

`python -m tests.yarn.yarn_kit` fetches the jars with Maven, below `build/`, and says what is
missing if that cannot be done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from millrace.config import Config
from millrace.testing.managed_process import ManagedProcess

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
JARS = ROOT / "build" / "yarn-3.5.0"
FETCH_S_MAX: Final = 600
RUN_S_MAX: Final = 900
PATIENT = Config().with_options(kafka_start_ms_max=300_000)
_LOG = "log4j.rootLogger=WARN,a\nlog4j.appender.a=org.apache.log4j.ConsoleAppender\n"
_LAYOUT = "log4j.appender.a.layout=org.apache.log4j.SimpleLayout\n"


def jars() -> Path:
    """The folder with Hadoop's jars."""
    if JARS.is_dir():
        return JARS
    maven = shutil.which("mvn")
    assert maven is not None, "there is no mvn on the PATH, which fetches Hadoop's YARN"
    JARS.parent.mkdir(exist_ok=True)
    trial = Path(tempfile.mkdtemp(dir=JARS.parent))
    command = [maven, "-q", "-B", "-f", str(FOLDER / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={trial}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=FETCH_S_MAX, check=False)
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-1000:]
        assert done.returncode == 0, f"mvn failed: {said}"
        trial.rename(JARS)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return JARS


@contextmanager
def yarn(folder: Path) -> Iterator[dict[str, str]]:
    """A running YARN; yields the environment of its clients."""
    settings = folder / "hadoop"
    settings.mkdir()
    (folder / "log4j.properties").write_text(_LOG + _LAYOUT)
    java = shutil.which("java")
    assert java is not None, "there is no java on the PATH"
    command = [java, "-Xmx512m", f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}"]
    command += [f"-Dtest.build.data={folder / 'hosts'}", "-cp", f"{jars()}/*"]
    command += [str(FOLDER / "YarnHosts.java"), str(settings)]
    process = ManagedProcess.start(
        command,
        log=str(folder / "yarn.log"),
        is_ready=(settings / "yarn-site.xml").exists,
        config=PATIENT,
    )
    home = str(Path(pyspark.__file__).parent)
    own = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    own |= {"HADOOP_CONF_DIR": str(settings), "SPARK_HOME": home, "PYTHONPATH": ""}
    try:
        yield own | {"PYSPARK_PYTHON": sys.executable}
    finally:
        process.stop()


def settings_of(folder: Path) -> dict[str, str]:
    """What every application here is given: Spark lies on the host, and is not uploaded."""
    small = {"driver": "512m", "executor": "512m"}
    return {
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
        "spark.yarn.stagingDir": f"file://{folder}/staging",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
        "spark.yarn.submit.waitAppCompletion": "true",
        "spark.executor.instances": "2",
        "spark.ui.enabled": "false",
        **{f"spark.{who}.memory": size for who, size in small.items()},
        **{f"spark.{who}.memoryOverhead": "512m" for who in small},
    }


def submit(
    folder: Path, log: Path, own: dict[str, str], program: Sequence[str]
) -> subprocess.Popen[str]:
    """Submit a program whose driver runs in a container."""
    command = [str(Path(own["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", "yarn"]
    command += ["--deploy-mode", "cluster"]
    for name, value in settings_of(folder).items():
        command += ["--conf", f"{name}={value}"]
    with log.open("w") as out:
        return subprocess.Popen(
            [*command, *program], env=own, stdout=out, stderr=subprocess.STDOUT, text=True
        )


if __name__ == "__main__":
    try:
        jars()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        sys.exit(str(error))
