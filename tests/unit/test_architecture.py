"""docs/architecture.md says what the code is: its picture, its rooms, and files of its walks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = ("A shuffle", "A query", "A paid call", "A coordinated read", "A stream")
FILES_MIN = 5


def walk(title: str) -> list[str]:
    """The files of a walk, in order."""
    text = PAGE.split(f"### {title}\n")[1].split("\n### ")[0]
    return re.findall(r"^\d+\. `([\w/]+\.py)`", text, re.MULTILINE)


def test_the_picture_is_made_from_the_imports_of_today() -> None:
    script = str(ROOT / "scripts" / "architecture.py")
    command = [sys.executable, script, "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_room_is_in_the_table() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "millrace").glob("*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in PAGE} == set()


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_passes_files_that_exist_and_never_goes_back(title: str) -> None:
    files = walk(title)
    assert len(files) >= FILES_MIN
    assert [name for name in files if not (ROOT / "src" / "millrace" / name).exists()] == []
    assert len(set(files)) == len(files), "a walk that comes to a file again"
