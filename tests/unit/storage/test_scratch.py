"""Folders on a host's disk: gone with their work, swept when it was killed, nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.errors import StorageError
from millrace.storage import scratch
from millrace.storage.scratch import scratch_folder


def test_what_the_dead_left_is_swept_and_what_the_living_have_is_not(tmp_path: Path) -> None:
    dead = tmp_path / "work-dead"
    dead.mkdir()
    (dead / "lock").touch()
    other = tmp_path / "else-dead"
    other.mkdir()
    (other / "lock").touch()

    with scratch_folder(str(tmp_path), "work-") as first:
        assert not dead.exists()
        with scratch_folder(str(tmp_path), "work-") as second:
            assert os.path.isdir(first)
            assert first != second

    assert os.listdir(tmp_path) == ["else-dead"]


def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match="making a folder in"),
        scratch_folder(str(tmp_path / "file" / "below"), "work-"),
    ):
        raise AssertionError("there is no such folder")


def test_a_folder_that_another_user_made_for_us_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_FOLDER", str(tmp_path))
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(StorageError, match="belongs to another user"):
        scratch.own_folder()
