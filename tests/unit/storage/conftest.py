from __future__ import annotations

from pathlib import Path

import pytest

from millrace.storage.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "mill"))
