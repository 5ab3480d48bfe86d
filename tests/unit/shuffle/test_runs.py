"""Numbers of runs, signs of life, and what is said of a run that cannot be read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.unit.shuffle.shuffle_kit import (
    begin,
    child_begins_runs,
    column,
    decide,
    in_children,
    write,
)

from millrace.config import Config
from millrace.errors import Corrupt, FormatError, S3Unreachable, StorageError, UserError
from millrace.ids import AttemptId, QueryId, StageId
from millrace.shuffle import manifest, runs
from millrace.shuffle.catalog import run_catalog
from millrace.storage import layout, workspace_token
from millrace.storage.documents import seal
from millrace.storage.local import LocalStore

RUN, STAGE = QueryId(1), StageId(0)


def alive(store: LocalStore, run: int, *, now: int) -> bool:
    return runs.is_alive(store, QueryId(run), now_ms=now, config=Config(run_dead_after=0.1))


def beat_at(store: LocalStore, run: int, ms: int) -> None:
    os.utime(store.path(layout.alive_path(QueryId(run))), (ms / 1000, ms / 1000))


def test_runs_are_numbered_from_1_and_say_what_they_are(store: LocalStore) -> None:
    first = runs.begin_run(store, plan="scan orders", about={"user": "me"}, now_ms=5)
    second = runs.begin_run(store, plan="scan items", about={}, now_ms=6)

    assert (first.query_id, second.query_id) == (1, 2)
    assert runs.read_run(store, RUN) == first
    assert [run.plan for run in run_catalog.all_runs(store)] == ["scan orders", "scan items"]


def test_racing_processes_get_numbers_of_their_own(store: LocalStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()

    in_children(child_begins_runs, [(store.root, n, 10, str(out)) for n in range(8)])

    given = [json.loads(path.read_text(encoding="utf-8")) for path in out.iterdir()]
    numbers = [number for mine in given for number in mine]
    assert len(numbers) == len(set(numbers)) == 80
    assert sorted(numbers) == [run.query_id for run in run_catalog.all_runs(store)]
    assert all(mine == sorted(mine) for mine in given)


def test_a_slow_claim_does_not_take_a_number_that_was_used_and_dropped(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store)
    begin(store)
    real = LocalStore.numbers
    answers: list[list[int]] = [
        [],
        [],
    ]  # What was there before the two runs, which end while we are slow.

    def numbers(self: LocalStore, relative: str) -> list[int]:
        return answers.pop() if len(answers) == 2 else real(self, relative)

    os.unlink(store.path(layout.query_path(RUN)))
    os.rmdir(store.path(layout.query_folder(RUN)))
    monkeypatch.setattr(LocalStore, "numbers", numbers)

    assert begin(store) == 3
    assert not store.exists(layout.query_folder(RUN))


def test_a_run_lives_while_it_beats(store: LocalStore) -> None:
    run = begin(store, alive=True)
    beat_at(store, run, 10_000)

    assert alive(store, run, now=10_099)
    assert not alive(store, run, now=10_100)


def test_a_run_that_ended_is_not_alive(store: LocalStore) -> None:
    run = begin(store, alive=True)
    beat_at(store, run, 10_000)

    with runs.heartbeat(store, QueryId(run), Config()):
        assert alive(store, run, now=10_001)

    assert not alive(store, run, now=10_001)


def test_the_heart_beats_from_the_side_until_the_end(store: LocalStore) -> None:
    run = begin(store, alive=True)
    beat_at(store, run, 10_000)
    path = layout.alive_path(QueryId(run))

    with runs.heartbeat(store, QueryId(run), Config(heartbeat_ms=1)):
        while store.changed_at_ms(path) == 10_000:
            pass  # A heart that does not beat hangs this test.
        store.remove_file(path)
        while not store.exists(path):
            pass

    assert not store.exists(path)


def test_an_error_in_the_body_ends_the_run_too(store: LocalStore) -> None:
    run = begin(store, alive=True)

    with pytest.raises(ValueError, match="mine"), runs.heartbeat(store, QueryId(run), Config()):
        raise ValueError("mine")

    assert not store.exists(layout.alive_path(QueryId(run)))


def test_a_run_that_is_not_there_names_those_that_are(store: LocalStore) -> None:
    with pytest.raises(UserError, match=r"no run 7 in .*\n  found: no runs"):
        runs.read_run(store, QueryId(7))
    for _ in range(12):
        begin(store)

    with pytest.raises(UserError, match="found: 3, 4, 5, 6, 7, 8, 9, 10, 11, 12\n"):
        runs.read_run(store, QueryId(99))


def test_a_run_without_a_manifest_is_told_from_one_that_is_not_there(store: LocalStore) -> None:
    run = QueryId(begin(store))

    with pytest.raises(UserError, match="run 1 has no finished stage 0\n  found: no manifest"):
        runs.read_manifest(store, run, STAGE)
    with pytest.raises(UserError, match="no run 2"):
        runs.read_manifest(store, QueryId(2), STAGE)


def test_a_torn_description_names_the_file_and_hides_no_other_run(store: LocalStore) -> None:
    begin(store)
    begin(store)
    path = Path(store.path(layout.query_path(RUN)))
    path.write_bytes(path.read_bytes()[:20])

    with pytest.raises(Corrupt, match=rf"{path} cannot be read"):
        runs.read_run(store, RUN)
    with pytest.raises(Corrupt, match=rf"{path} cannot be read"):
        run_catalog.all_runs(store)
    (torn, whole) = runs.scan(store)
    assert isinstance(torn[1], Corrupt)
    assert isinstance(whole[1], runs.Run)
    assert whole[1].query_id == 2


def test_a_stage_is_decided_once(store: LocalStore) -> None:
    begin(store)
    first = write(store, AttemptId.of(1, 0, 0, 1), column([1]))
    second = write(store, AttemptId.of(1, 0, 0, 2), column([2]))
    decided = decide(store, 1, [first])

    with pytest.raises(UserError, match="another process decided this stage"):
        decide(store, 1, [second])

    assert runs.read_manifest(store, RUN, STAGE) == decided


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "has version 2, this Millrace reads version 1"),
        ({"chosen": [{"map_task": 0}]}, "KeyError: 'attempt'"),
        ({"chosen": 5}, "chosen is 5, expected a list"),
        ({"schema": "AAAA"}, "cannot be read as a manifest"),
        ({"partitions": None}, "partitions is None, expected a whole number"),
        ({"partitions": 7}, "7 partitions, and not one count for each"),
        ({"workspace": "0" * 16}, "it belongs to workspace '0000000000000000', this is"),
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_read_says_why(
    store: LocalStore, change: dict[str, object], words: str
) -> None:
    workspace_token.make(store)
    begin(store)
    decide(store, 1, [write(store, AttemptId.of(1, 0, 0, 1), column([1]))])
    path = Path(store.path(layout.manifest_path(RUN, STAGE)))
    fields = json.loads(path.read_bytes()) | change
    del fields["checksum"]
    path.write_bytes(seal(fields))

    with pytest.raises((Corrupt, FormatError), match=words) as caught:
        runs.read_manifest(store, RUN, STAGE)

    assert str(path) in str(caught.value)


def test_what_is_relied_on_is_what_manifests_and_running_stages_name(store: LocalStore) -> None:
    chosen = write(store, AttemptId.of(1, 0, 0, 1), column([1]))
    decide(store, 1, [chosen])
    runs.rely_on(store, QueryId(2), STAGE, [AttemptId.of(1, 0, 5, 1), AttemptId.of(1, 0, 6, 1)])
    runs.rely_on(store, QueryId(2), STAGE, [AttemptId.of(1, 0, 6, 1)])

    assert runs.relied_on(store) == {chosen.id, AttemptId.of(1, 0, 6, 1)}
    assert runs.relied_on(store, apart_from=[QueryId(2)]) == {chosen.id}


@pytest.mark.parametrize("text", [b"", b"[]", b'{"attempts": [5]}', b'{"attempts": ["1/2"]}'])
def test_references_that_cannot_be_read_say_so(text: bytes) -> None:
    with pytest.raises(Corrupt, match="here cannot be read"):
        manifest.decode_references(text, where="here")


def named(store: LocalStore, name: str, *, finish: bool) -> int:
    run = runs.begin_run(store, plan="p", about={runs.NAME: name}, now_ms=1)
    if finish:
        store.make_folder(layout.stage_folder(run.query_id, StageId(0)))
        store.create(layout.manifest_path(run.query_id, StageId(0)), b"{}")
    return run.query_id


def test_a_name_means_the_newest_run_that_finished_under_it(store: LocalStore) -> None:
    begin(store)
    first = named(store, "by day", finish=True)
    other = named(store, "other", finish=True)
    second = named(store, "by day", finish=True)
    named(store, "by day", finish=False)

    assert run_catalog.find_named(store, "by day") == [first, second]
    assert run_catalog.resolve(store, "by day") == second
    assert run_catalog.resolve(store, "other") == other
    assert run_catalog.resolve(store, 77) == 77


def test_a_name_that_no_finished_run_has_is_an_error_that_lists_those_there_are(
    store: LocalStore,
) -> None:
    with pytest.raises(UserError, match="none that has a name"):
        run_catalog.resolve(store, "by day")
    named(store, "by day", finish=False)
    named(store, "other", finish=True)
    with pytest.raises(UserError, match=r"no finished shuffle 'by day'.*\n  found: other\n"):
        run_catalog.resolve(store, "by day")


def test_a_store_that_is_away_ends_a_run_at_the_limit_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("millrace.shuffle.runs.time.monotonic", lambda: clock[0])
    heart = runs.Heart(Config(gone_after=5))

    def away() -> None:
        raise S3Unreachable("no answer")

    heart.beat(away)
    clock[0] += 4.999
    heart.beat(away)
    heart.check()
    clock[0] += 0.001
    with pytest.raises(S3Unreachable):
        heart.check()

    heart.beat(lambda: None)
    heart.check()


def test_a_full_disk_under_the_sign_of_life_is_left_to_the_run_to_tell() -> None:
    heart = runs.Heart(Config(gone_after=0.001))

    def full() -> None:
        raise StorageError("no space left")

    heart.beat(full)
    heart.check()
