"""Listings of files as sources."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.errors import UserError
from millrace.pipeline.define.file_listing import SCHEMA, files
from millrace.pipeline.define.source_identity import told_by


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["b.mp4", "a.mp4", "x/c.mp4", "x/y/d.mp4", "e.txt", ".f.mp4"]):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"." * number)
        os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    (tmp_path / "_later").mkdir()
    (tmp_path / "_later" / "g.mp4").touch()
    return tmp_path


def names(folder: Path, listing: pa.Table) -> list[str]:
    return [os.path.relpath(path, folder) for path in listing["path"].to_pylist()]


def test_a_listing_has_path_size_and_time_in_order_of_paths(folder: Path) -> None:
    listing = files(folder / "*.mp4").listing

    assert listing.schema == SCHEMA
    assert listing.to_pylist() == [
        {
            "path": str(folder / name),
            "size": size,
            "modified": dt.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=dt.UTC),
        }
        for name, size in [("a.mp4", 1), ("b.mp4", 0)]
    ]


def test_stars_stand_for_folders_too(folder: Path) -> None:
    everywhere = ["a.mp4", "b.mp4", "x/c.mp4", "x/y/d.mp4"]

    assert names(folder, files(str(folder / "**" / "*.mp4")).listing) == everywhere
    assert names(folder, files(folder).listing) == sorted([*everywhere, "e.txt"])
    assert names(folder, files(folder / "x").listing) == ["x/c.mp4", "x/y/d.mp4"]


def test_several_patterns_list_each_file_once(folder: Path) -> None:
    found = files(folder / "a.mp4", [folder / "*.mp4", folder / ".f.mp4"])

    assert names(folder, found.listing) == [".f.mp4", "a.mp4", "b.mp4"]


def test_relative_paths_become_whole_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    assert files("x/*.mp4").listing["path"].to_pylist() == [str(Path.cwd() / "x/c.mp4")]


def test_a_name_with_brackets_is_found_as_it_is(folder: Path) -> None:
    (folder / "clip[1].mp4").touch()

    assert names(folder, files(folder / "clip[1].mp4").listing) == ["clip[1].mp4"]


def test_a_listing_is_told_from_one_with_another_file_size_or_time(folder: Path) -> None:
    first = told_by(files(folder))
    assert told_by(files(folder / "**")) == first

    os.utime(folder / "a.mp4", ns=(0, 1))
    touched = told_by(files(folder))
    (folder / "new.mp4").touch()
    grown = told_by(files(folder))

    assert len({str(found) for found in (first, touched, grown)}) == 3
    assert grown["files"].startswith("6 files ")


def test_nothing_found_is_an_error_that_says_where(folder: Path) -> None:
    with pytest.raises(UserError, match=r"finds none\n  looked at: .*/\*\.avi"):
        files(folder / "*.avi")
    with pytest.raises(UserError, match=r"files\(\) of nothing"):
        files()
    with pytest.raises(UserError, match="is not a local path"):
        files("s3://bucket/*.mp4")
