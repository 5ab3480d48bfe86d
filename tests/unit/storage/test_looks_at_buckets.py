"""How often a bucket is asked whether its workspace is still there: each time is a round trip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millrace.errors import WorkspaceUnknown
from millrace.storage.layout import WORKSPACE_FILE
from millrace.storage.local import LocalStore
from millrace.storage.workspace_home import WorkspaceHome
from millrace.storage.workspace_token import TOKEN_FILE, make, token_of


class CountedBucket:
    """A folder that is taken for a bucket, and counts what is asked for."""

    remote = True

    def __init__(self, folder: Path) -> None:
        self.folder = LocalStore(str(folder))
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - passed on
        return getattr(self.folder, name)

    def read(self, relative: str) -> bytes | None:
        self.asked.append(relative)
        return self.folder.read(relative)

    def exists(self, relative: str) -> bool:
        self.asked.append(f"exists {relative}")
        return self.folder.exists(relative)

    def names(self, relative: str) -> list[str]:
        self.asked.append(f"names {relative}")
        return self.folder.names(relative)


@pytest.fixture
def bucket(tmp_path: Path) -> Any:  # noqa: ANN401 - stands for a store
    made = CountedBucket(tmp_path / "mill")
    make(made.folder)
    return made


def test_opening_asks_once_and_calls_do_not_wait_for_the_bucket(bucket: Any) -> None:  # noqa: ANN401
    home = WorkspaceHome(bucket)
    assert bucket.asked == [WORKSPACE_FILE, "place.json"]

    assert home.is_there()
    assert home.look() == home.look()
    assert len(bucket.asked) == 2
    home.look(is_early=True)
    assert bucket.asked[2:] == [WORKSPACE_FILE]


def test_the_thread_that_looks_early_finds_that_the_workspace_is_gone(
    bucket: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    home = WorkspaceHome(bucket)
    (tmp_path / "mill" / WORKSPACE_FILE).unlink()

    with pytest.raises(WorkspaceUnknown, match="was deleted while it was open"):
        home.look(is_early=True)
    with pytest.raises(WorkspaceUnknown, match="was deleted while it was open"):
        home.look()


def test_a_token_that_is_there_is_read_once(bucket: Any) -> None:  # noqa: ANN401
    first = token_of(bucket, is_for_journals=True)
    bucket.asked.clear()

    assert token_of(bucket, is_for_journals=True) == first
    assert bucket.asked == [TOKEN_FILE]
