"""Looks at this process and its host: Python, Java, packages, extras, ports and disk."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Final

from millrace.cli.doctor.doctor_findings import DoctorFinding, fine, missing, note, of_error
from millrace.errors import UserError
from millrace.extras import EXTRAS, missing_modules
from millrace.spark.versions.spark_versions import TRIED, shown, spark_on_path

PYTHON_TRIED: Final = ((3, 11), (3, 13))
DISK_BYTES_MIN: Final = 1_000_000_000
"""Below this, a query that spills soon fails."""
_FLOORS: Final = {"pyarrow": (19,), "numpy": (2, 0), "duckdb": (2, 0), "sqlglot": (30,)}
_FOR: Final = {
    "spark": "datasets, jobs and streams",
    "connect": "columns of millrace.functions and sessions of Spark Connect",
    "airflow": "jobs as tasks of Airflow",
    "delta": "Delta tables",
    "dagster": "jobs as assets of Dagster",
    "kafka": "journals on Kafka",
    "postgres": "ledgers and tables in PostgreSQL",
    "s3": "workspaces in buckets of S3",
    "gcs": "workspaces and files in Google's buckets",
    "azure": "workspaces in Azure's containers",
    "iceberg": "Iceberg tables",
    "llm": "prompts to models",
    "otel": "traces and metrics by OpenTelemetry",
    "ui": "the page of a workspace",
}


def look_at_host(needed: frozenset[str]) -> Iterator[DoctorFinding]:
    """This host; `needed` names the extras without which the caller's work fails."""
    yield _python(sys.version_info[:2])
    for name, floor in _FLOORS.items():
        yield package(name, floor, installed_version(name))
    yield spark_package(installed_version("pyspark"))
    for extra in EXTRAS:
        yield _extra(extra, missing_modules(extra), is_needed=extra in needed)
    yield disk("disk for temporary files", tempfile.gettempdir())
    yield ports()


def _python(version: tuple[int, ...]) -> DoctorFinding:
    found = f"{platform.python_version()} at {sys.executable}"
    lowest, highest = PYTHON_TRIED
    if lowest <= version <= highest:
        return fine("Python", found)
    return note("Python", f"{found}; tried are 3.{lowest[1]} to 3.{highest[1]}")


def installed_version(name: str) -> str | None:
    """The version of a package here; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return spark_on_path() if name == "pyspark" else None


def package(name: str, floor: tuple[int, ...], version: str | None) -> DoctorFinding:
    """A package that Millrace needs at a version, or a later one."""
    least = ".".join(map(str, floor))
    fix = f"pip install '{name}>={least}'"
    if version is None:
        return missing(name, "not installed", fix)
    if numbers(version) < floor:
        return missing(name, f"{version}, needed is {least} or later", fix)
    return fine(name, version)


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    parts: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def spark_package(version: str | None) -> DoctorFinding:
    """PySpark, and whether its version is one that is tried."""
    if version is None:
        fix = "pip install 'millrace[spark]', or use the Python of a runtime that has PySpark"
        return missing("PySpark", "not installed: no dataset, job or stream can run", fix)
    lowest, highest = TRIED[0], TRIED[-1]
    tried = f"tried are {shown(lowest)} to {shown(highest)}"
    if numbers(version)[:2] < lowest:
        return missing("PySpark", f"{version}; {tried}", f"pip install 'pyspark>={shown(lowest)}'")
    if numbers(version)[:2] > highest:
        return note("PySpark", f"{version}; {tried}")
    return fine("PySpark", version)


def _extra(extra: str, modules: list[str], *, is_needed: bool) -> DoctorFinding:
    part = f"extra {extra}"
    if not modules:
        return fine(part, f"installed, for {_FOR[extra]}")
    found, fix = (
        f"no {', '.join(modules)}: needed for {_FOR[extra]}",
        f"pip install 'millrace[{extra}]'",
    )
    return missing(part, found, fix) if is_needed else note(part, found, fix)


def java(environ: Mapping[str, str]) -> DoctorFinding:
    """The Java that a Spark of this host would start on."""
    from millrace.spark.session import check_java  # noqa: PLC0415 - needs PySpark

    home = environ.get("JAVA_HOME")
    try:
        check_java()
    except UserError as error:
        return of_error("Java", error)
    where = os.path.join(home, "bin", "java") if home else shutil.which("java")
    return fine("Java", f"17 or later, at {where}")


def disk(part: str, folder: str) -> DoctorFinding:
    """The free space of a folder's disk."""
    free = shutil.disk_usage(folder).free
    found = f"{free / 1e9:.1f} GB free at {folder}"
    if free < DISK_BYTES_MIN:
        return missing(part, found, "free some space there, or set TMPDIR to a larger disk")
    return fine(part, found)


def ports() -> DoctorFinding:
    """Whether this process can listen and connect to itself, as owners and agents do."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            number = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", number), timeout=5):
                return fine("ports", "a process here can listen and be reached on loopback")
    except OSError as error:
        return missing("ports", f"no connection on loopback: {error}", "allow loopback connections")
