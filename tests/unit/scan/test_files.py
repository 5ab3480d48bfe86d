"""Which files are found, of which format, and which version of each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.errors import UserError
from millrace.scan.input_files import Paths, describe, find_files, format_of, identify
from millrace.scan.source import Listing, has_content, open_source


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def files_at(paths: Paths) -> list[str]:
    return find_files(paths).files


def names(folder: Path, found: list[str]) -> list[str]:
    return [os.path.relpath(path, folder) for path in found]


def test_a_file_a_folder_and_a_glob_are_found_each_file_once_and_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "b.parquet", "a.parquet", "deep/er/c.parquet")

    assert names(tmp_path, files_at(tmp_path / "a.parquet")) == ["a.parquet"]
    everything = ["a.parquet", "b.parquet", "deep/er/c.parquet"]
    assert names(tmp_path, files_at(str(tmp_path))) == everything
    assert names(tmp_path, files_at(tmp_path / "*.parquet")) == everything[:2]
    assert names(tmp_path, files_at(tmp_path / "**" / "*.parquet")) == everything
    several = [tmp_path / "b.parquet", tmp_path / "*.parquet", tmp_path, tmp_path / "b.parquet"]
    assert names(tmp_path, files_at(several)) == everything


def test_hidden_names_are_skipped_in_folders_and_globs(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *("a.parquet", "_SUCCESS", ".a.crc", "_temporary/0/x.parquet", ".git/y.parquet"),
    )

    assert names(tmp_path, files_at(tmp_path)) == ["a.parquet"]
    assert names(tmp_path, files_at(tmp_path / "*")) == ["a.parquet"]
    assert names(tmp_path, files_at(tmp_path / "**" / "*.parquet")) == ["a.parquet"]


def test_a_hidden_file_named_outright_is_read(tmp_path: Path) -> None:
    touch(tmp_path, "_a.parquet")
    touch(tmp_path, "_folder/b.parquet")

    assert names(tmp_path, files_at(tmp_path / "_a.parquet")) == ["_a.parquet"]
    assert names(tmp_path, files_at(tmp_path / "_folder")) == ["_folder/b.parquet"]
    assert names(tmp_path, files_at(tmp_path / "_folder" / "*")) == ["_folder/b.parquet"]


def test_a_file_whose_name_looks_like_a_glob_is_itself(tmp_path: Path) -> None:
    touch(tmp_path, "a[1].parquet", "a1.parquet")

    assert names(tmp_path, files_at(tmp_path / "a[1].parquet")) == ["a[1].parquet"]


def test_one_folder_of_a_column_s_value_named_outright_is_read(tmp_path: Path) -> None:
    touch(tmp_path, "y=2024/a.parquet", "y=2024/b=c.parquet")

    assert names(tmp_path, files_at(tmp_path / "y=2024")) == [
        *("y=2024/a.parquet", "y=2024/b=c.parquet")
    ]
    assert names(tmp_path, files_at(tmp_path / "y=2024" / "a*")) == ["y=2024/a.parquet"]


def test_links_to_folders_are_followed_and_rings_are_not(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/a.parquet", "data/b.parquet")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "ring").symlink_to(tmp_path / "data")

    found = names(tmp_path, files_at(tmp_path / "data"))

    assert found == ["data/b.parquet", "data/link/a.parquet"]


@pytest.mark.parametrize("given", ["none.parquet", "none/", "*.none", "empty", "hidden"])
def test_nothing_found_is_an_error_that_says_where(tmp_path: Path, given: str) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "hidden/_SUCCESS")

    with pytest.raises(UserError, match=rf"no input files at .*{given.strip('/*')}") as caught:
        find_files(tmp_path / given)

    assert f"looked at: {tmp_path}" in str(caught.value)


def test_no_paths_at_all_are_refused() -> None:
    with pytest.raises(UserError, match="no input paths were given"):
        find_files([])


@pytest.mark.parametrize("uri", ["ftp://host/x", "oss://b/*.parquet"])
def test_other_file_systems_are_refused_with_a_way_out(uri: str) -> None:
    with pytest.raises(
        UserError,
        match=r"nor in a store that is known here\n  found: .*\n  to fix: mount it, or .*Spark",
    ):
        find_files(uri)


@pytest.mark.parametrize("prefix", ["file://", "file:"])
def test_uris_of_local_files_are_paths(tmp_path: Path, prefix: str) -> None:
    touch(tmp_path, "a.parquet")

    assert files_at(f"{prefix}{tmp_path}/a.parquet") == [f"{tmp_path}/a.parquet"]


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "a.parquet", "closed/b.parquet")
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match="closed cannot be listed: .*Permission denied"):
        find_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", "parquet"),
        ("a.pq", "parquet"),
        ("A.PARQUET", "parquet"),
        ("a.arrow", "arrow"),
        ("a.ipc", "arrow"),
        ("a.feather", "arrow"),
        ("a.csv", "csv"),
        ("a.csv.gz", "csv"),
        ("a.b.csv.zst", "csv"),
        ("a.json.bz2", "json"),
        ("a.jsonl", "json"),
        ("a.ndjson", "json"),
    ],
)
def test_the_format_is_known_by_the_name(name: str, kind: str) -> None:
    assert format_of([f"/d/{name}"], None) == kind


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "parquet", "a.parquet.d"])
def test_a_name_that_does_not_tell_needs_format(name: str) -> None:
    with pytest.raises(
        UserError, match=rf"the format of /d/{name} is not known(.|\n)*give format="
    ):
        format_of([f"/d/{name}"], None)
    assert format_of([f"/d/{name}"], "csv") == "csv"


def test_mixed_formats_are_refused_with_an_example_of_each() -> None:
    with pytest.raises(UserError, match="several formats") as caught:
        format_of(["/d/a.csv", "/d/b.csv", "/d/c.parquet", "/d/README"], None)

    assert "/d/a.csv (csv), /d/c.parquet (parquet), /d/README (unknown)" in str(caught.value)


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(
        UserError, match="unknown format 'orc'\n  found: known are arrow, csv, json, parquet"
    ):
        format_of(["/d/a.orc"], "orc")


def listed(path: Path, *, seconds_later: float = 0.0, by_content: bool = False) -> object:
    """The file's identity, as listed some time after it changed, with what times do not tell."""
    status = path.stat()
    changed_ms = max(status.st_mtime_ns, status.st_ctime_ns) // 1_000_000
    now_ms = changed_ms + int(seconds_later * 1000)
    file = identify(str(path), now_ms=now_ms, recent_ms=2000, by_content=by_content)
    return file.identity(), file.content


def test_a_same_size_edit_in_the_same_tick_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n", encoding="utf-8")
    stat = path.stat()
    before = listed(path)

    path.write_text("x\n2\n", encoding="utf-8")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert listed(path) != before


def test_the_bytes_tell_where_even_the_times_of_the_inode_do_not(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n", encoding="utf-8")
    source = open_source(path, Listing(now_ms=recent_now(path), recent_ms=2000))
    recorded = {str(path): source.shapes[0].file.content or ""}
    assert has_content(recorded)

    path.write_text("x\n2\n", encoding="utf-8")

    assert not has_content(recorded)


def recent_now(path: Path) -> int:
    return path.stat().st_ctime_ns // 1_000_000


def test_a_file_that_is_gone_does_not_have_the_content(tmp_path: Path) -> None:
    assert not has_content({str(tmp_path / "gone"): "00"})
    assert has_content({})


def test_a_file_that_rested_is_told_by_size_and_times_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n", encoding="utf-8")

    file = identify(str(path), now_ms=recent_now(path) + 2001, recent_ms=2000, by_content=False)

    assert file.content is None
    assert file.identity() == {
        "path": str(path),
        "size": 4,
        "mtime_ns": path.stat().st_mtime_ns,
        "ctime_ns": path.stat().st_ctime_ns,
    }


@pytest.mark.parametrize("later_ms", [0, 2000, -50_000])
def test_a_file_that_changed_lately_or_in_the_future_is_told_by_its_bytes_too(
    tmp_path: Path, later_ms: int
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n", encoding="utf-8")

    file = identify(str(path), now_ms=recent_now(path) + later_ms, recent_ms=2000, by_content=False)

    assert file.content is not None
    assert "content" not in file.identity()


def test_by_content_a_copy_with_other_times_is_the_same_version(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n", encoding="utf-8")
    before = listed(path, seconds_later=100, by_content=True)
    by_time = listed(path, seconds_later=100)

    path.write_text("x\n1\n", encoding="utf-8")
    os.utime(path, (5, 5))

    assert listed(path, seconds_later=100, by_content=True) == before
    assert listed(path, seconds_later=100) != by_time
    path.write_text("x\n2\n", encoding="utf-8")
    assert listed(path, seconds_later=100, by_content=True) != before


def test_a_file_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"input file {tmp_path}/gone cannot be read"):
        describe(str(tmp_path / "gone"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="folder cannot be read"):
        identify(str(tmp_path / "folder"), now_ms=0, recent_ms=1, by_content=True)
