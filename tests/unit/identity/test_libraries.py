"""Whose code a module is, and how a library is told."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from millrace.identity.libraries import library_of


def test_a_library_is_told_by_version_checksums_and_all_that_it_requires() -> None:
    text = library_of("pandas") or ""

    assert "pandas==" in text
    assert "numpy==" in text, "pandas computes with it"
    assert library_of("json") == library_of("os.path") == library_of("builtins")
    assert (library_of("json") or "").startswith("CPython 3.")


@pytest.mark.parametrize(
    "name", ["__main__", "tests.unit.identity.test_libraries", "no_such_thing"]
)
def test_a_users_module_is_no_library(name: str) -> None:
    assert library_of(name) is None


def asked(folder: Path, program: str) -> list[str | None]:
    """What a fresh process prints as JSON, with a folder first on its path."""
    ran = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(program), str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answers: list[str | None] = json.loads(ran.stdout)
    return answers


def test_a_users_module_with_a_name_of_the_standard_library_is_the_users(tmp_path: Path) -> None:
    (tmp_path / "colorsys.py").write_text("def f(x): return x")
    program = """
        import json, sys
        sys.path.insert(0, sys.argv[1])
        import colorsys
        from millrace.identity.libraries import library_of
        print(json.dumps([library_of("colorsys"), library_of("json")]))
    """

    found, library = asked(tmp_path, program)

    assert found is None
    assert library is not None


def installed(site: Path, text: str, version: str = "1.0") -> None:
    """A distribution as pip would leave it."""
    (site / "mill_wheel.py").write_text(text)
    about = site / f"mill_wheel-{version}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: mill-wheel\nVersion: {version}\n"
    )
    (about / "RECORD").write_text(
        f"mill_wheel.py,sha256={abs(hash(text))},{len(text)}\n{about.name}/RECORD,,\n"
        f"{about.name}/direct_url.json,sha256={len(str(site))},1\n"
    )


WHEEL = """
    import json, sys
    sys.path.insert(0, sys.argv[1])
    import mill_wheel
    from millrace.identity.functions import function_identity
    from millrace.identity.libraries import library_of
    def f(x): return mill_wheel.g(x)
    print(json.dumps([library_of("mill_wheel"), function_identity(f)]))
"""


def test_a_wheel_that_was_built_again_under_its_old_version_is_another_library(
    tmp_path: Path,
) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    installed(site, "def g(x): return x")
    before = asked(site, WHEEL)
    assert asked(site, WHEEL) == before
    installed(site, "def g(x): return x + 1")
    after = asked(site, WHEEL)

    assert "mill-wheel==1.0" in (before[0] or "")
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_a_module_that_nobody_installed_among_libraries_counts_by_its_text(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    (site / "mill_wheel.py").write_text("def g(x): return x")
    before = asked(site, WHEEL)
    (site / "mill_wheel.py").write_text("def g(x): return x + 1")
    after = asked(site, WHEEL)

    assert before[0] is None
    assert before[1] != after[1]
