"""What `millrace demo` says before it begins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli.demo_command import demo
from millrace.errors import UserError


@pytest.mark.parametrize(("module", "extra"), [("httpx", "llm"), ("pyspark", "spark")])
def test_a_missing_extra_is_named_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    ran = CliRunner().invoke(demo, ["--folder", str(tmp_path / "demo")])

    assert isinstance(ran.exception, UserError)
    assert f"pip install 'millrace[{extra}]'" in str(ran.exception)
    assert not (tmp_path / "demo").exists()
