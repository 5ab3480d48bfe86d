"""A result folder is the old one or the new one, wherever its writer is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.shuffle.shuffle_kit import KILLED, in_child, in_children

from millrace.errors import StorageError, UserError
from millrace.execute.results import publish_folder
from millrace.execute.results.publish_folder import Draft
from millrace.testing.fault_injection import POINTS

MOVING = [point for point in POINTS if point.startswith("results.publish.")]
OLD, NEW = {"part-00000.parquet": "old"}, {"part-00000.parquet": "new", "part-00001.parquet": "2"}
Contents = dict[str, str]


def put(target: str, contents: Contents, mode: str = "error", *, swap: bool = True) -> None:
    """Write a result as a driver and its tasks do."""
    if not swap:
        publish_folder.exchange = lambda left, right: False  # noqa: ARG005 - a disk that cannot swap
    with Draft(target, mode) as draft:
        names = {}
        for number, (name, text) in enumerate(contents.items()):
            Path(draft.tasks, f"try-{number}").write_text(text)
            Path(draft.tasks, f"lost-try-{number}").write_text("never to be seen")
            names[f"try-{number}"] = name
        draft.publish(names, sync=True)


def put_child(target: str, contents: Contents, mode: str, swap: int) -> None:
    put(target, contents, mode, swap=bool(swap))


def put_or_refused(target: str, contents: Contents, mode: str) -> None:
    try:
        put(target, contents, mode)
    except UserError as error:
        if "exists already" not in str(error):
            raise


def found(target: Path) -> Contents | None:
    if not target.exists():
        return None
    files = {path.name: path.read_text() for path in target.iterdir()}
    assert files.pop("_SUCCESS") == ""
    return files


def beside(target: Path) -> list[str]:
    return sorted(name for name in os.listdir(target.parent) if name != target.name)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "results" / "out"


def test_a_result_is_put_in_place_with_its_folders_and_nothing_else(target: Path) -> None:
    put(str(target), NEW)

    assert found(target) == NEW
    assert beside(target) == []


def test_an_existing_result_is_refused_before_any_work_and_an_empty_folder_is_none(
    target: Path,
) -> None:
    target.mkdir(parents=True)
    put(str(target), OLD)

    with pytest.raises(UserError, match="exists already\n  to fix: choose another path"):
        Draft(str(target), "error")
    assert found(target) == OLD
    assert beside(target) == []


@pytest.mark.parametrize("swap", [True, False])
def test_overwriting_leaves_only_the_new_result(
    target: Path, monkeypatch: pytest.MonkeyPatch, *, swap: bool
) -> None:
    monkeypatch.setattr(publish_folder, "exchange", publish_folder.exchange)
    put(str(target), OLD, "overwrite", swap=swap)
    put(str(target), NEW, "overwrite", swap=swap)

    assert found(target) == NEW
    assert beside(target) == []


def test_folders_are_swapped_in_one_step_where_the_system_can(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()

    swapped = publish_folder.exchange(str(tmp_path / "one"), str(tmp_path / "two"))

    assert os.listdir(tmp_path / "one") == (["two"] if swapped else ["one"])
    with pytest.raises(FileNotFoundError):
        publish_folder.exchange(str(tmp_path / "one"), str(tmp_path / "gone"))


@pytest.mark.parametrize("point", MOVING)
@pytest.mark.parametrize("mode", ["error", "overwrite"])
@pytest.mark.parametrize("swap", [1, 0])
def test_a_writer_killed_anywhere_leaves_the_old_result_or_the_new_one(
    target: Path, point: str, mode: str, swap: int
) -> None:
    before = OLD if mode == "overwrite" else None
    if before:
        put(str(target), before)
    code = in_child(put_child, str(target), NEW, mode, swap, fault=point)

    between = point.endswith("between_moves")
    swaps_by_two_moves = mode == "overwrite" and (not swap or not _can_swap(target))
    if between and not swaps_by_two_moves:
        assert code == 0  # Nothing is moved aside there.
        assert found(target) == NEW
        return
    assert code == KILLED
    if between:
        assert found(target) is None  # The one moment; the old result is put back by the next.
    else:
        assert found(target) == (NEW if point.endswith("after_move") else before)
    assert len(beside(target)) == 1

    if between:
        with pytest.raises(UserError, match="exists already"):
            Draft(str(target), "error")
        assert found(target) == OLD
    else:
        put(str(target), {"part-00000.parquet": "third"}, "overwrite")
        assert found(target) == {"part-00000.parquet": "third"}
    assert beside(target) == []


def _can_swap(target: Path) -> bool:
    folders = [target.parent / name for name in ("swap-a", "swap-b")]
    for folder in folders:
        folder.mkdir(parents=True)
    try:
        return publish_folder.exchange(*map(str, folders))
    finally:
        for folder in folders:
            folder.rmdir()


def test_every_point_of_publishing_is_covered() -> None:
    assert len(MOVING) == 3


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_writers_at_the_same_time_never_mix(target: Path, mode: str) -> None:
    results = [{f"part-{n}": str(n) for n in range(who, who + 3)} for who in range(6)]

    in_children(put_or_refused, [(str(target), one, mode) for one in results])

    assert found(target) in results
    assert beside(target) == []


def test_a_living_writers_files_are_left_alone(target: Path) -> None:
    with Draft(str(target), "overwrite") as first:
        Path(first.tasks, "try").write_text("first")
        put(str(target), OLD, "overwrite")
        first.publish({"try": "part-00000.parquet"}, sync=False)

    assert found(target) == {"part-00000.parquet": "first"}
    assert beside(target) == []


def test_an_error_on_the_way_leaves_what_was_there(target: Path) -> None:
    put(str(target), OLD)

    with (
        pytest.raises(StorageError, match="(?s)publishing .* failed.*gone"),
        Draft(str(target), "overwrite") as draft,
    ):
        draft.publish({"gone": "part-00000.parquet"}, sync=False)

    assert found(target) == OLD
    assert beside(target) == []


def _file(path: Path) -> str:
    path.write_text("")
    return str(path)


@pytest.mark.parametrize(
    ("path", "mode", "words"),
    [
        (lambda tmp: str(tmp / "x"), "append", "mode is 'append'"),
        (lambda tmp: _file(tmp / "x"), "overwrite", "is a file"),
        (lambda _: "ftp://bucket/x", "error", "not a local path"),
        (lambda _: "/", "overwrite", "cannot be replaced"),
    ],
)
def test_wrong_targets_are_refused(
    tmp_path: Path, path: Callable[[Path], str], mode: str, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        Draft(path(tmp_path), mode)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="making room for .*/file/out failed"):
        Draft(str(tmp_path / "file" / "out"), "error")


# Writers that were cut off before they published.


def publish_one(target: str) -> None:
    draft = Draft(target, "error", "a")
    Path(draft.tasks, "finished").write_text("moved")
    draft.publish({"finished": "part-00000.parquet"}, sync=True)


def cut_off(target: Path, token: str) -> None:
    def failing() -> None:
        with Draft(str(target), "error", token) as draft:
            Path(draft.tasks, "finished").write_text("kept")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()


def test_the_next_writer_with_its_token_goes_on_with_its_files(target: Path) -> None:
    cut_off(target, "a")

    with Draft(str(target), "error", "a") as draft:
        assert (draft.token, os.listdir(draft.tasks)) == ("a", ["finished"])
        draft.publish({"finished": "part-00000.parquet"}, sync=True)

    assert found(target) == {"part-00000.parquet": "kept"}
    assert beside(target) == []


def test_a_writer_with_another_token_removes_its_files(target: Path) -> None:
    cut_off(target, "a")
    put(str(target), NEW)
    assert (found(target), beside(target)) == (NEW, [])


def test_nothing_is_taken_over_from_a_writer_that_lives(target: Path) -> None:
    with Draft(str(target), "overwrite", "a") as first:
        Path(first.tasks, "finished").write_text("its own")
        with Draft(str(target), "overwrite", "a") as second:
            assert second.token != "a"  # noqa: S105 - a token of a write
            assert os.listdir(second.tasks) == []
        assert os.listdir(first.tasks) == ["finished"]


def test_nothing_is_taken_over_from_a_writer_that_had_begun_to_publish(target: Path) -> None:
    assert in_child(publish_one, str(target), fault="results.publish.before_move") == KILLED

    with Draft(str(target), "error", "a") as draft:
        assert os.listdir(draft.tasks) == []
