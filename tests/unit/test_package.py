"""What is said in pyproject.toml is so: version, packages, package data, dependencies, extras."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.since_version import SINCE

import millrace
from millrace.spark.versions.spark_versions import TRIED, version_of

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
NEEDED = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
EXTRAS = {
    name: [Requirement(line) for line in lines]
    for name, lines in PROJECT["project"]["optional-dependencies"].items()
}
MADE = {".pyc", ".so"}
NOT_IMPORTED = {"pandas", "pyiceberg-core"}
"""Needed by others, and imported by nobody here: docs/dependencies.md says why."""
IMPORTED_AS = {
    "apache-airflow": "airflow",
    "azure-identity": "azure",
    "google-auth": "google",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
}
SCHEDULERS = {"airflow": "requirements-airflow.lock", "dagster": "requirements-dagster.lock"}
"""Extras whose packages have an environment, and a lock, of their own."""

LOCKS = ["requirements.lock", *sorted(path.name for path in ROOT.glob("requirements-spark-*.lock"))]


def pinned(lock: str) -> dict[str, str]:
    text = (ROOT / lock).read_text(encoding="utf-8")
    return {
        name.lower(): version for name, version in re.findall(r"^(\S+)==(\S+)$", text, re.MULTILINE)
    }


def imported() -> Iterator[str]:
    """Packages of others that the sources import, as they are named when they are installed."""
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_for"):
                names = [str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)]
            yield from (name.split(".")[0].replace("_", "-") for name in names)


def test_the_version_is_the_one_in_the_code_and_in_the_changelog() -> None:
    assert SETUPTOOLS["dynamic"]["version"] == {"attr": "millrace.version.__version__"}
    assert f"## {millrace.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in SRC.rglob("*.py")}

    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_file_that_is_not_code_is_package_data_and_the_other_way_round() -> None:
    found = {
        path.relative_to(SRC / "millrace").as_posix()
        for path in (SRC / "millrace").rglob("*")
        if path.is_file() and path.suffix not in {".py"} | MADE
    }

    patterns = SETUPTOOLS["package-data"]["millrace"]
    assert [name for name in found if not any(fnmatch(name, each) for each in patterns)] == []
    assert [each for each in patterns if not any(fnmatch(name, each) for name in found)] == []


def test_what_is_imported_is_a_dependency_and_the_other_way_round() -> None:
    own = {"millrace", "pyspark-millrace", "--future--"}
    others = {name for name in imported() if name.replace("-", "_") not in sys.stdlib_module_names}
    named = {one.name for one in [*NEEDED, *(one for each in EXTRAS.values() for one in each)]}

    assert others - own == {IMPORTED_AS.get(name, name) for name in named - NOT_IMPORTED}


@pytest.mark.parametrize("lock", LOCKS)
def test_pinned_versions_are_within_the_ranges(lock: str) -> None:
    extras = [lines for name, lines in EXTRAS.items() if name not in SCHEDULERS]
    everything = [*NEEDED, *(one for extra in extras for one in extra)]
    versions = pinned(lock)

    outside = [one for one in everything if versions[one.name.lower()] not in one.specifier]
    assert outside == []


@pytest.mark.parametrize("extra", SCHEDULERS)
def test_a_scheduler_is_tried_beside_what_millrace_needs(extra: str) -> None:
    versions = pinned(SCHEDULERS[extra])

    everything = [*NEEDED, *EXTRAS[extra], *EXTRAS["connect"]]
    assert [one for one in everything if versions[one.name.lower()] not in one.specifier] == []


def test_no_install_replaces_the_pyspark_of_a_runtime() -> None:
    assert {"pyspark", "pandas", "protobuf", "grpcio"}.isdisjoint(one.name for one in NEEDED)


def test_there_is_a_lock_of_each_version_of_spark_that_is_tried() -> None:
    locked = {version_of(pinned(lock)["pyspark"]) for lock in LOCKS}

    assert locked == set(TRIED)


def test_every_dependency_and_extra_is_explained() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")

    assert [one.name for one in NEEDED if f"`{one.name}`" not in page] == []
    assert [name for name in EXTRAS if f"extra `{name}`" not in page] == []


def test_the_command_line_is_where_it_is_said_to_be() -> None:
    module, _, name = PROJECT["project"]["scripts"]["millrace"].partition(":")
    file = SRC / f"{module.replace('.', '/')}.py"

    assert re.search(rf"^def {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_test_that_is_left_out_on_older_versions_is_there() -> None:
    for name in SINCE:
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8"), name
