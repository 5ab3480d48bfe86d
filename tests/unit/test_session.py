"""What Millrace asks of Java, and what it says when Java does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.spark.session import check_java, java_version
from millrace.spark.spark_tasks import from_task


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ("command not found", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_a_java_that_is_too_old_is_named_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(UserError, match=r"too old(.|\n)*11\.0\.2(.|\n)*openjdk-17-jre-headless"):
        check_java()


def test_a_missing_java_is_named_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(UserError, match=r"no java on the PATH(.|\n)*openjdk-17-jre-headless"):
        check_java()


def test_an_error_of_ours_is_found_in_what_spark_says() -> None:
    text = (
        "An exception was thrown from the Python worker.\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "millrace.errors.DataLost: part-3.ipc is gone\n"
        "  expected: 7 rows\n"
        "  to fix: run map task 2 again\n"
        "\n"
        "\tat org.apache.spark.api.python.PythonRunner\n"
    )
    error = from_task(RuntimeError(text))

    assert type(error).__name__ == "DataLost"
    assert str(error).splitlines() == [
        "part-3.ipc is gone",
        "  expected: 7 rows",
        "  to fix: run map task 2 again",
    ]
    assert type(from_task(RuntimeError("boom"))).__name__ == "TaskFailed"
