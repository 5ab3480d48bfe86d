"""Processes killed with SIGKILL at every named point of writing and cleaning up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.shuffle.shuffle_kit import (
    HOUR_MS,
    KILLED,
    begin,
    child_cleans,
    child_drops,
    child_writes,
    column,
    decide,
    everything,
    folder,
    in_child,
    made_from,
    now_ms,
    values,
    write,
)

from millrace.config import Config
from millrace.ids import LATEST, AttemptId
from millrace.shuffle import cleanup, reader, reuse
from millrace.storage import layout
from millrace.storage.local import LocalStore
from millrace.testing.fault_injection import POINTS

ROWS = list(range(500))
WRITING = [point for point in POINTS if point.startswith(("shuffle.write.", "store.create."))]
VISIBLE = {"shuffle.write.between_indexes", "shuffle.write.after_index"}
CLEANING = [point for point in POINTS if point.startswith(("shuffle.cleanup.", "store.discard."))]


def late() -> int:
    return now_ms() + 2 * HOUR_MS


def test_every_point_of_store_writer_and_clean_up_is_covered() -> None:
    inside = {p for p in POINTS if p.startswith(("store.", "shuffle.write.", "shuffle.cleanup."))}

    assert inside == {*WRITING, *CLEANING}
    assert len(inside) >= 8


@pytest.mark.parametrize("point", WRITING)
def test_a_killed_writer_leaves_nothing_or_a_whole_attempt(store: LocalStore, point: str) -> None:
    second, third, fourth = (AttemptId.of(1, 0, 0, n) for n in (2, 3, 4))
    write(store, second, column([20]))
    assert reader.latest_attempt(store, second.task) == 2

    code = in_child(child_writes, store.root, (1, 0, 0, 3), ROWS, fault=point)

    assert code == KILLED
    assert folder(store, third).is_dir()
    found = reuse.find(store, made_from(), has_content=lambda _: True)
    if point in VISIBLE:
        assert reader.latest_attempt(store, second.task) == 3
        assert values(store, second) == ROWS
        assert found is not None
        assert found.id == third
    else:
        assert reader.latest_attempt(store, second.task) == 2
        assert values(store, second) == [20]
        assert found is None

    assert in_child(child_writes, store.root, (1, 0, 0, 4), ROWS) == 0
    assert values(store, second) == ROWS

    swept = cleanup.remove_expired(store, ttl_ms=10 * HOUR_MS, now_ms=late(), config=Config())
    assert swept.abandoned == (() if point in VISIBLE else (third,))
    assert folder(store, third).exists() == (point in VISIBLE)
    assert values(store, fourth) == ROWS
    assert {path for path in everything(store) if "draft" in path} == set()
    notes = {Path(path).name for path in everything(store) if path.startswith("fingerprints/")}
    notes.discard(layout.NEWEST)
    assert notes == ({"1-0-0-3", "1-0-0-4"} if point in VISIBLE else {"1-0-0-4"})


def test_a_young_leftover_is_left_to_whoever_may_still_write_it(store: LocalStore) -> None:
    point = "shuffle.write.before_index"
    in_child(child_writes, store.root, (1, 0, 0, 3), ROWS, fault=point)

    swept = cleanup.remove_expired(store, ttl_ms=1, now_ms=now_ms(), config=Config())

    assert swept == cleanup.CleanupReport()
    assert folder(store, AttemptId.of(1, 0, 0, 3)).is_dir()


@pytest.mark.parametrize("point", CLEANING)
def test_a_killed_clean_up_is_finished_by_the_next(store: LocalStore, point: str) -> None:
    old, new = AttemptId.of(1, 0, 0, 1), AttemptId.of(1, 0, 0, 2)
    write(store, old, column([10]), created_at_ms=1, source=made_from())
    write(store, new, column([20]), created_at_ms=1)

    code = in_child(child_cleans, store.root, 1, now_ms(), fault=point)

    assert code == KILLED
    assert values(store, new) == [20]
    cleanup.remove_expired(store, ttl_ms=1, now_ms=now_ms(), config=Config())
    assert not folder(store, old).exists()
    assert {path for path in everything(store) if path.startswith("trash")} == set()
    assert {path for path in everything(store) if path.startswith("fingerprints")} == set()
    assert values(store, new) == [20]
    again = cleanup.remove_expired(store, ttl_ms=1, now_ms=now_ms(), config=Config())
    assert again == cleanup.CleanupReport()


@pytest.mark.parametrize("point", CLEANING)
def test_a_killed_dropping_of_runs_is_finished_by_the_next(store: LocalStore, point: str) -> None:
    for values_of_run in ([1], [2]):
        run = begin(store)
        index = write(store, AttemptId.of(run, 0, 0, 1), column(values_of_run), source=made_from())
        decide(store, run, [index])
    kept = begin(store, created_at_ms=now_ms())
    decide(store, kept, [reader.read_index(store, AttemptId.of(1, 0, 0, 1).task, LATEST)])

    code = in_child(child_drops, store.root, HOUR_MS, now_ms(), fault=point)
    assert code == KILLED
    assert values(store, AttemptId.of(1, 0, 0, 1)) == [1]
    cleanup.drop_runs(store, older_than_ms=HOUR_MS, now_ms=late(), config=Config())

    assert not folder(store, AttemptId.of(2, 0, 0, 1)).exists()
    assert {path for path in everything(store) if path.startswith(("trash", "shuffle/2/"))} == set()


def test_the_mark_of_a_dead_clean_up_does_not_keep_an_attempt_from_reuse_for_good(
    store: LocalStore,
) -> None:
    old = write(store, AttemptId.of(1, 0, 0, 1), column([10]), created_at_ms=1, source=made_from())
    write(store, AttemptId.of(1, 0, 0, 2), column([20]), created_at_ms=1)
    in_child(child_cleans, store.root, 1, now_ms(), fault="shuffle.cleanup.after_mark")
    decide(store, begin(store), [old])
    assert reuse.find(store, made_from(), has_content=lambda _: True) is None

    cleanup.remove_expired(store, ttl_ms=1, now_ms=now_ms(), config=Config())
    assert reuse.find(store, made_from(), has_content=lambda _: True) is None
    cleanup.remove_expired(store, ttl_ms=1, now_ms=late(), config=Config())

    assert reuse.find(store, made_from(), has_content=lambda _: True) == old
    assert values(store, old.id, old.id.attempt) == [10]
