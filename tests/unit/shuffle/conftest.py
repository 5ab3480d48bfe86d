from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disks import mounted

from millrace.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "mill"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB and 200 files, so that it can be filled for real."""
    with mounted(tmp_path / "disk", "size=2m,nr_inodes=200") as folder:
        yield folder
