"""Millrace on YARN: drivers and executors in containers of a node manager."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.cluster.job_kit import PaidApi, paid_api
from tests.yarn.yarn_app import ROWS
from tests.yarn.yarn_kit import FOLDER, RUN_S_MAX, settings_of, submit, yarn

pytestmark = [pytest.mark.slow, pytest.mark.spark]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yarn")


@pytest.fixture(scope="module")
def own(place: Path) -> Iterator[dict[str, str]]:
    with yarn(place) as environment:
        yield environment


def wait_for(calls: int, api: PaidApi, submitted: subprocess.Popen[str]) -> None:
    until = time.monotonic() + RUN_S_MAX
    while len(api.asked) < calls:
        assert submitted.poll() is None, "it ended before"
        assert time.monotonic() < until, f"{len(api.asked)} calls so far"
        time.sleep(0.05)


def test_a_driver_that_is_killed_is_started_again_by_yarn_and_goes_on(
    own: dict[str, str], place: Path, tmp_path: Path
) -> None:
    mill, out, drivers = tmp_path / "mill", tmp_path / "out", tmp_path / "drivers"
    log = tmp_path / "submit.log"
    with paid_api(0.2) as api:
        program = [str(FOLDER / "yarn_app.py"), str(mill), str(out), api.url, str(tmp_path)]
        submitted = submit(place, log, own, program)
        try:
            wait_for(12, api, submitted)
            master = int(drivers.read_text().split()[1])
            os.kill(master, signal.SIGKILL)
            submitted.wait(RUN_S_MAX)
        finally:
            submitted.kill()

    assert submitted.returncode == 0, log.read_text()[-3000:]
    assert len(drivers.read_text().splitlines()) == 2
    told = json.loads((tmp_path / "report.json").read_text())
    assert (told["master"], told["state"]) == ("yarn", "finished")
    assert told["groups"] == [[k, ROWS // 4] for k in range(4)]
    counts = api.counts()
    assert set(counts) == set(range(ROWS))
    # What was under way in two workers, and no call more.
    assert sum(counts.values()) - ROWS == told["in_doubt"] <= 8
    assert all(len(keys) == 1 for keys in api.keys().values())
    rows = ds.dataset(out).to_table().to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(ROWS))


def test_the_doctor_looks_at_executors_in_containers(
    own: dict[str, str], place: Path, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in settings_of(place).items())
    )
    environment = {**own, "SPARK_CONF_DIR": str(tmp_path)}
    command = [sys.executable, "-c", "from millrace.cli.main import main; main()", "doctor"]
    looked = subprocess.run(
        [*command, str(tmp_path / "mill"), "--master", "yarn", "--json"],
        env=environment,
        capture_output=True,
        timeout=RUN_S_MAX,
        check=False,
        text=True,
    )

    assert looked.returncode == 0, (looked.stdout + looked.stderr)[-3000:]
    found = {each["part"]: each for each in json.loads(looked.stdout)}
    assert found["executors"]["verdict"] == found["ports to executors"]["verdict"] == "ok"
