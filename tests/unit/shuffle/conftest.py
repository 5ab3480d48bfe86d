from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.shuffle.store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "mill"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB and 200 files, so that it can be filled for real."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=200", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, check=False, text=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount a tmpfs (root): {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
