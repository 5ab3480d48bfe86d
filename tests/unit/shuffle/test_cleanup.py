"""What goes, what stays, and who may be at it at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.unit.shuffle.shuffle_kit import (
    HOUR_MS,
    begin,
    child_cleans,
    child_drops,
    column,
    decide,
    everything,
    folder,
    in_children,
    made_from,
    now_ms,
    values,
    write,
)

from millrace.config import Config
from millrace.errors import Corrupt, FormatError
from millrace.ids import AttemptId, QueryId, StageId
from millrace.shuffle import cleanup, reader, reuse, runs
from millrace.shuffle.catalog import run_catalog
from millrace.shuffle.cleanup import CleanupReport
from millrace.shuffle.index import MapTaskIndex
from millrace.storage import layout
from millrace.storage.local import LocalStore

AN_HOUR_LATER = 2 * HOUR_MS


def clean(store: LocalStore, *, now: int | None = None) -> CleanupReport:
    now = now_ms() if now is None else now
    return cleanup.remove_expired(store, ttl_ms=1, now_ms=now, config=Config())


def drop(
    store: LocalStore, *, now: int | None = None, older_than_ms: int = HOUR_MS
) -> CleanupReport:
    now = now_ms() if now is None else now
    return cleanup.drop_runs(store, older_than_ms=older_than_ms, now_ms=now, config=Config())


def finished_run(store: LocalStore, rows: list[int], *, created_at_ms: int = 1) -> MapTaskIndex:
    """A run of one map task that ended long ago."""
    run = begin(store, created_at_ms=created_at_ms)
    index = write(store, AttemptId.of(run, 0, 0, 1), column(rows), source=made_from(size=run))
    decide(store, run, [index])
    return index


def attempts_of(store: LocalStore, run: int) -> list[int]:
    return store.numbers(f"shuffle/{run}/0/0")


def test_an_attempt_that_a_manifest_points_to_stays_whatever_its_age(store: LocalStore) -> None:
    old = write(store, AttemptId.of(1, 0, 0, 1), column([10]))
    write(store, AttemptId.of(1, 0, 0, 2), column([20]))
    write(store, AttemptId.of(1, 0, 0, 3), column([30]))
    decide(store, 1, [old])

    removed = clean(store)

    assert removed.expired == (AttemptId.of(1, 0, 0, 2),)
    assert values(store, old.id, old.id.attempt) == [10]


def test_a_look_says_what_a_clean_up_removes_and_changes_nothing(store: LocalStore) -> None:
    old = write(store, AttemptId.of(1, 0, 0, 1), column([10]))
    write(store, AttemptId.of(1, 0, 0, 2), column([20]))
    write(store, AttemptId.of(1, 0, 0, 3), column([30]))
    decide(store, 1, [old])
    before = everything(store)

    seen = cleanup.expiring(store, ttl_ms=1, now_ms=now_ms(), config=Config())

    assert everything(store) == before
    assert seen == clean(store)
    assert (len(seen.expired), seen.bytes > 0) == (1, True)
    assert cleanup.expiring(store, ttl_ms=1, now_ms=now_ms(), config=Config()) == CleanupReport()


def test_an_attempt_that_a_running_stage_of_another_run_relies_on_stays(store: LocalStore) -> None:
    old = write(store, AttemptId.of(1, 0, 0, 1), column([10]))
    write(store, AttemptId.of(1, 0, 0, 2), column([20]))
    runs.rely_on(store, QueryId(2), StageId(0), [old.id])

    assert clean(store) == CleanupReport()
    assert attempts_of(store, 1) == [1, 2]


def test_attempts_of_a_running_stage_stay_until_it_has_chosen(store: LocalStore) -> None:
    run = begin(store, alive=True)
    first = write(store, AttemptId.of(run, 0, 0, 1), column([10]))
    write(store, AttemptId.of(run, 0, 0, 2), column([20]))
    assert clean(store) == CleanupReport()

    decide(store, run, [first])
    write(store, AttemptId.of(run, 0, 0, 3), column([30]))

    assert clean(store).expired == (AttemptId.of(run, 0, 0, 2),)
    assert attempts_of(store, run) == [1, 3]


def test_leftovers_of_a_run_that_lives_are_never_swept(store: LocalStore) -> None:
    run = begin(store, alive=True)
    store.make_folder(layout.attempt_folder(AttemptId.of(run, 0, 0, 1)))
    config = Config(unfinished_grace=0.001)
    soon = now_ms() + 1000

    beating = cleanup.remove_expired(store, ttl_ms=1, now_ms=soon, config=config)
    silent = cleanup.remove_expired(store, ttl_ms=1, now_ms=soon + HOUR_MS, config=config)

    assert beating.abandoned == ()
    assert silent.abandoned == (AttemptId.of(run, 0, 0, 1),)


def test_an_attempt_of_a_newer_millrace_is_not_taken_for_a_leftover(store: LocalStore) -> None:
    attempt = AttemptId.of(1, 0, 0, 1)
    write(store, attempt, column([10]))
    path = folder(store, attempt) / "index.bin"
    path.write_bytes(b"FFQI\x03\0\0\0" + path.read_bytes()[8:])

    assert clean(store, now=now_ms() + AN_HOUR_LATER) == CleanupReport()
    assert folder(store, attempt).exists()
    with pytest.raises(FormatError, match="has index version 3"):
        reader.read_index(store, attempt.task, attempt.attempt)


def test_a_stage_that_was_decided_is_swept_of_what_never_finished(store: LocalStore) -> None:
    index = write(store, AttemptId.of(1, 0, 0, 1), column([10]))
    second = write(store, AttemptId.of(1, 0, 0, 2), column([20]))
    store.make_folder(layout.attempt_folder(AttemptId.of(1, 0, 0, 3)))
    decide(store, 1, [index])

    swept = cleanup.sweep_stage(store, QueryId(1), StageId(0))

    assert swept == (AttemptId.of(1, 0, 0, 3),)
    assert attempts_of(store, 1) == [1, 2]
    assert reuse.is_whole(store, second)
    assert cleanup.sweep_stage(store, QueryId(1), StageId(0)) == ()


def test_a_leftover_that_is_finished_at_the_last_moment_stays(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = AttemptId.of(1, 0, 0, 1)
    real = cleanup._mark

    def mark_when_it_has_just_finished(*args: object) -> bool:
        write(store, late, column([10]), source=made_from())
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cleanup, "_mark", mark_when_it_has_just_finished)

    assert cleanup._remove_unfinished(store, [late]) == ()

    assert values(store, late) == [10]
    assert reuse.find(store, made_from(), has_content=lambda _: True) is not None


def test_a_torn_manifest_stops_the_clean_up_by_name_and_its_run_can_be_dropped(
    store: LocalStore,
) -> None:
    old = finished_run(store, [10])
    write(store, AttemptId.of(1, 0, 0, 2), column([20]))
    path = folder(store, old.id).parents[1] / "manifest.json"
    path.write_bytes(path.read_bytes()[:50])

    with pytest.raises(Corrupt, match=rf"{path} cannot be read as a manifest"):
        clean(store)
    assert attempts_of(store, 1) == [1, 2]

    assert drop(store).runs == (1,)


def test_old_runs_are_dropped_and_young_ones_stay(store: LocalStore) -> None:
    finished_run(store, [10])
    young = finished_run(store, [20], created_at_ms=now_ms())

    removed = drop(store)

    assert removed.runs == (1,)
    assert removed.expired == (AttemptId.of(1, 0, 0, 1),)
    assert removed.bytes > 0
    assert values(store, young.id) == [20]
    assert {path for path in everything(store) if path.startswith("shuffle/1/")} == set()
    assert [run.query_id for run in run_catalog.all_runs(store)] == [2]
    assert drop(store) == CleanupReport()


def test_dropping_keeps_what_other_runs_rely_on_until_those_go(store: LocalStore) -> None:
    old = finished_run(store, [10])
    young = begin(store, created_at_ms=now_ms())
    decide(store, young, [old])
    begin(store, created_at_ms=now_ms() + HOUR_MS)

    first = drop(store)
    assert first.runs == (1,)
    assert first.expired == ()
    assert values(store, old.id) == [10]
    assert reuse.is_whole(store, old)

    second = drop(store, now=now_ms() + AN_HOUR_LATER)
    assert second.expired == (old.id,)
    assert set(second.runs) >= {young}
    assert {path for path in everything(store) if path.startswith("shuffle/1/")} == set()


def test_a_run_that_lives_is_never_dropped(store: LocalStore) -> None:
    run = begin(store, alive=True)
    index = write(store, AttemptId.of(run, 0, 0, 1), column([10]))
    begin(store)

    assert drop(store).runs == (2,)

    assert values(store, index.id) == [10]
    assert runs.read_run(store, QueryId(run)).query_id == run


def test_a_run_that_claimed_its_number_just_now_is_not_dropped(store: LocalStore) -> None:
    store.make_folder(layout.query_folder(QueryId(1)))
    begin(store, alive=True)

    drop(store, older_than_ms=1, now=now_ms() + 50)
    assert store.exists(layout.query_folder(QueryId(1)))
    drop(store, older_than_ms=1, now=now_ms() + HOUR_MS)

    assert not store.exists(layout.query_folder(QueryId(1)))


def test_numbers_are_not_given_out_again_after_the_newest_run_was_dropped(
    store: LocalStore,
) -> None:
    for _ in range(3):
        finished_run(store, [1])

    assert drop(store).runs == (1, 2, 3)

    assert run_catalog.all_runs(store) == []
    assert begin(store) == 4


def test_drafts_of_killed_drivers_go_with_their_run(store: LocalStore) -> None:
    index = finished_run(store, [10])
    begin(store, created_at_ms=now_ms())
    store.create("shuffle/1/query.json.0123.draft", b"half")
    store.create("shuffle/1/0/manifest.json.0123.draft", b"half")

    assert drop(store, now=now_ms() + 10).expired == (index.id,)

    assert not store.exists("shuffle/1")


def test_drafts_of_killed_drivers_are_swept_after_the_grace(store: LocalStore) -> None:
    finished_run(store, [10])
    store.create("shuffle/1/0/manifest.json.0123.draft", b"half")

    clean(store)
    assert store.exists("shuffle/1/0/manifest.json.0123.draft")
    clean(store, now=now_ms() + AN_HOUR_LATER)

    assert not store.exists("shuffle/1/0/manifest.json.0123.draft")


@pytest.mark.parametrize(("child", "first"), [(child_cleans, 1), (child_drops, HOUR_MS)])
def test_clean_ups_in_several_processes_at_once_are_one(
    store: LocalStore, child: Callable[..., None], first: int
) -> None:
    old, young = begin(store, created_at_ms=1), begin(store, created_at_ms=now_ms())
    for task in range(30):
        write(store, AttemptId.of(old, 0, task, 1), column([1]), source=made_from(size=task))
        write(store, AttemptId.of(old, 0, task, 2), column([2]))
    kept = AttemptId.of(young, 0, 0, 1)
    write(store, kept, column([3]))

    in_children(child, [(store.root, first, now_ms())] * 4)

    assert values(store, kept) == [3]
    left = {path.split("/")[4] for path in everything(store) if path.startswith("shuffle/1/0/")}
    assert left == ({"2"} if child is child_cleans else set())
    assert {path for path in everything(store) if path.startswith(("trash", "finger"))} == set()


def reuse_it(store: LocalStore, run: int, index: MapTaskIndex) -> bool:
    """What a driver does: say that it relies on an attempt, then see that it is there."""
    runs.rely_on(store, QueryId(run), StageId(0), [index.id])
    return reuse.is_whole(store, index)


@pytest.mark.parametrize("point", ["shuffle.cleanup.after_mark", "shuffle.cleanup.after_claims"])
def test_a_run_that_comes_after_the_mark_sees_it_or_is_seen(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    old = write(store, AttemptId.of(1, 0, 0, 1), column([10]), source=made_from())
    write(store, AttemptId.of(1, 0, 0, 2), column([20]))
    answers: list[bool] = []

    def meanwhile(reached: str) -> None:
        if reached == point:
            answers.append(reuse_it(store, 5, old))

    monkeypatch.setattr(cleanup, "fault", meanwhile)
    clean(store)

    assert answers == [False]
    seen = point == "shuffle.cleanup.after_mark"
    assert folder(store, old.id).exists() == seen
    assert reuse.is_whole(store, old) == seen


def test_a_run_that_comes_before_the_mark_keeps_the_attempt(store: LocalStore) -> None:
    old = write(store, AttemptId.of(1, 0, 0, 1), column([10]), source=made_from())
    write(store, AttemptId.of(1, 0, 0, 2), column([20]))

    assert reuse_it(store, 5, old)
    clean(store)

    assert values(store, old.id, old.id.attempt) == [10]
    assert reuse.is_whole(store, old)


def test_a_clean_up_does_not_take_back_the_mark_of_another(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = finished_run(store, [10])
    second = begin(store, created_at_ms=now_ms() - 2 * HOUR_MS)
    decide(store, second, [old])
    begin(store, created_at_ms=now_ms())
    real = cleanup._remove_claims
    answers: list[bool] = []

    def others_come_between(store: LocalStore, query_id: QueryId) -> None:
        if not answers:
            answers.append(False)
            # One that keeps the attempt for the second run, then a run that would reuse it.
            assert drop(store, older_than_ms=10 * HOUR_MS).expired == ()
            answers[0] = reuse_it(store, 9, old)
        real(store, query_id)

    monkeypatch.setattr(cleanup, "_remove_claims", others_come_between)
    assert drop(store, older_than_ms=HOUR_MS).expired == (old.id,)

    assert answers == [False]


def test_notes_of_table_writes_that_nobody_makes_again_go_when_they_are_old(
    store: LocalStore,
) -> None:
    store.make_folder(layout.TABLE_WRITES)
    store.replace(f"{layout.TABLE_WRITES}/a.json", b"{}")
    clean(store, now=now_ms() - HOUR_MS)
    assert store.names(layout.TABLE_WRITES) == ["a.json"]
    clean(store, now=now_ms() + HOUR_MS)
    assert store.names(layout.TABLE_WRITES) == []


@dataclass(frozen=True, slots=True)
class ListingStore(LocalStore):
    """Counts listings and reads."""

    seen: Counter[str] = field(default_factory=Counter, compare=False)

    def names(self, relative: str) -> list[str]:
        self.seen["listed"] += 1
        return LocalStore.names(self, relative)

    def read(self, relative: str) -> bytes | None:
        self.seen[relative.rpartition("/")[2]] += 1
        return LocalStore.read(self, relative)


@pytest.mark.parametrize("count", [5, 20, 80])
def test_a_clean_up_that_removes_nothing_lists_each_folder_once_and_reads_no_manifest(
    store: LocalStore, count: int
) -> None:
    for run in range(count):
        finished_run(store, [run])
    counting = ListingStore(store.root)

    assert clean(counting).attempts == 0

    # Of each run, its stage, its task and its attempt; its family and its fingerprint.
    assert counting.seen["listed"] <= 6 * count + 8
    assert counting.seen[layout.INDEX_BIN] == count
    assert counting.seen[layout.MANIFEST_FILE] == 0
