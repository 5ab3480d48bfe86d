"""The doctor says what is missing and how to get it, and its exit status follows."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli.doctor import host_checks, store_checks
from millrace.cli.doctor.doctor_findings import DoctorFinding, is_well, of_error
from millrace.cli.doctor.executor_checks import judge
from millrace.cli.main import cli
from millrace.config import Config
from millrace.errors import UserError
from millrace.spark.versions.executor_look import ExecutorLook, ExecutorReport

OWN = {"Python": "3.11", "millrace": "0.1.0", "pyarrow": "26.0.1"}


def run(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    ran = CliRunner().invoke(cli, ["doctor", "--no-spark", "--json", *arguments])
    assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
    return ran.exit_code, {finding["part"]: finding for finding in json.loads(ran.stdout)}


def report(host: str = "a", began_ms: int = 1000, reach: str = "", **other: str) -> ExecutorReport:
    return ExecutorReport(host=host, versions={**OWN, **other}, began_ms=began_ms, reach=reach)


def judged(*reports: ExecutorReport) -> dict[str, DoctorFinding]:
    looked = ExecutorLook(spark="4.3.0", reports=reports, sent_ms=900, done_ms=1100)
    return {finding.part: finding for finding in judge(looked, OWN)}


def test_a_host_with_everything_is_well_and_its_workspace_is_left_as_it_was(tmp_path: Path) -> None:
    status, found = run(str(tmp_path / "mill"))

    assert status == 0
    assert {finding["verdict"] for finding in found.values()} == {"ok", "note"}
    assert found["store conditions"]["verdict"] == found["clock of the store"]["verdict"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_said_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", no_version)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(host_checks, "missing_modules", lambda extra: [f"module of {extra}"])
    status, found = run("s3://bucket/mill")

    assert status == 1
    assert found["PySpark"]["fix"].startswith("pip install 'millrace[spark]'")
    assert found["pyarrow"]["fix"] == "pip install 'pyarrow>=19'"
    assert found["extra s3"]["verdict"] == "missing"
    assert found["extra kafka"]["verdict"] == "note"
    assert found["extra kafka"]["fix"] == "pip install 'millrace[kafka]'"


@pytest.mark.parametrize(
    ("version", "verdict"), [("3.5.1", "missing"), ("4.1.1.5.5.2026", "ok"), ("5.0.0", "note")]
)
def test_a_pyspark_outside_the_tried_versions_is_said(version: str, verdict: str) -> None:
    assert host_checks.spark_package(version).verdict == verdict


def test_a_package_below_its_floor_is_missing() -> None:
    assert host_checks.package("pyarrow", (19,), "18.1.0").verdict == "missing"
    assert host_checks.package("pyarrow", (19,), "19.0.1").verdict == "ok"
    assert host_checks.package("numpy", (2, 0), "2.0.0rc1").verdict == "ok"


def test_a_path_that_cannot_be_a_workspace_is_said_with_advice(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    found = list(store_checks.look_at_store(str(tmp_path / "file" / "mill"), Config()))

    assert not is_well(found)
    assert all(finding.fix for finding in found if finding.verdict == "missing")


def test_executors_with_other_versions_clocks_or_no_way_back_are_named() -> None:
    well = judged(report(), report("b"))
    assert is_well(list(well.values()))
    assert "tasks: 2, hosts: 2, all with" in well["executors"].found

    other = judged(report(), report("b", pyarrow="19.0.1"))["executors"]
    assert other.verdict == "missing"
    assert other.found == "pyarrow 19.0.1 on b, 26.0.1 here"
    ahead = judged(report(began_ms=60_000))["clocks of executors"]
    assert (ahead.verdict, ahead.found) == ("missing", "58.9 s ahead of this host's")
    behind = judged(report(began_ms=-60_000))["clocks of executors"]
    assert (behind.verdict, behind.found) == ("missing", "60.9 s behind this host's")
    cut_off = judged(report("b", reach="timed out"))["ports to executors"]
    assert (cut_off.verdict, "b: timed out" in cut_off.found) == ("note", True)


def test_an_error_is_a_finding_with_its_own_advice() -> None:
    finding = of_error("Java", UserError("Java is missing\n  found: no java\n  to fix: install it"))

    assert (finding.found, finding.fix) == ("Java is missing; found: no java", "install it")


def test_two_ways_to_one_spark_are_refused() -> None:
    ran = CliRunner().invoke(cli, ["doctor", "--master", "local", "--remote", "sc://host"])

    assert ran.exit_code == 2
    assert "give one of them" in ran.output
