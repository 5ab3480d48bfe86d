"""Writes of whole results to Iceberg tables, killed and made again: each is in the table once."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from tests.laws import seeds
from tests.unit.journal.kills_kit import KILLED, in_child, start
from tests.unit.tables.iceberg_kit import catalog_in, properties

import millrace as mr
from millrace.faults import VARIABLE, fault
from millrace.tables.iceberg import iceberg_commits
from millrace.tables.iceberg.iceberg_target import target_of
from millrace.tables.iceberg.iceberg_whole_writes import IcebergWrite
from millrace.testing.fault_injection import armed

multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
WRITING = ["iceberg.write.before_files", "iceberg.write.after_files"]
COMMITTING = [
    "iceberg.commit.before_catalog",
    "iceberg.commit.after_conflict",
    "iceberg.commit.after_catalog",
]
OTHERS_FROM = 1_000_000
ROWS = 3
"""Of each write."""


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def write(folder: str, once: str, made: pa.Table, mode: str = "append") -> bool:
    """What `write_iceberg` does; whether it committed."""
    keys = ("n",) if mode == "upsert" else ()
    target = target_of("db.t", properties(Path(folder)), call="w", keep_snapshots=5)
    one = IcebergWrite(target, mode, keys, once, "w")
    one.check(made.schema, mr.Config())
    if one.is_done():
        return False
    if mode == "upsert":
        return one.upsert(made) is not None
    files = target.writer(made.schema, mr.Config(), who="w").write([made], once)
    return one.commit(files) is not None


def numbers(catalog: Catalog) -> list[int]:
    found: list[int] = catalog.load_table("db.t").scan().to_arrow()["n"].to_pylist()
    return sorted(found)


def append_other(folder: str, number: int) -> None:
    while True:
        try:
            catalog_in(Path(folder)).load_table("db.t").append(rows(OTHERS_FROM + number))
        except CommitFailedException:
            continue
        return


def child_writes(folder: str, mode: str, point: str) -> None:
    """Write once, with a fault armed."""
    os.environ[VARIABLE] = armed(point)[VARIABLE]
    if point == "iceberg.commit.after_conflict":
        done = list[int]()

        def other_first(at: str) -> None:
            if at == "iceberg.commit.before_catalog" and not done:
                done.append(1)
                append_other(folder, 0)
            fault(at)

        vars(iceberg_commits)["fault"] = other_first
    write(folder, "monday", rows(2, 3), mode)


def child_writes_for_good(folder: str) -> None:
    """One write after the other, from the first that may not be made on."""
    noted = Path(folder, "begun")
    number = int(noted.read_text(encoding="utf-8")) if noted.exists() else 0
    while True:
        draft = noted.with_suffix(".draft")
        draft.write_text(str(number), encoding="utf-8")
        draft.replace(noted)
        made = rows(*range(number * ROWS, (number + 1) * ROWS))
        write(folder, f"write {number}", made, "upsert" if number % 4 == 3 else "append")
        number += 1


def child_appends(folder: str) -> None:
    for number in range(OTHERS_FROM):
        append_other(folder, number)
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("mode", "point"),
    [("append", point) for point in WRITING + COMMITTING]
    + [("overwrite", point) for point in COMMITTING]
    + [("upsert", COMMITTING[0]), ("upsert", COMMITTING[2])],
)
def test_a_write_killed_at_any_point_is_made_once(tmp_path: Path, mode: str, point: str) -> None:
    catalog = catalog_in(tmp_path)
    write(str(tmp_path), "sunday", rows(1, 2))
    new = {"append": [1, 2, 2, 3], "overwrite": [2, 3], "upsert": [1, 2, 3]}[mode]

    assert in_child(child_writes, str(tmp_path), mode, point) == KILLED

    is_in = point == "iceberg.commit.after_catalog"
    theirs = [OTHERS_FROM] if point == "iceberg.commit.after_conflict" else []
    assert numbers(catalog) == (new if is_in else [1, 2, *theirs]), "all of it or nothing"
    assert write(str(tmp_path), "monday", rows(2, 3), mode) != is_in
    assert numbers(catalog) == (new if mode == "overwrite" else [*new, *theirs])
    assert not write(str(tmp_path), "monday", rows(2, 3), mode)


def killed_at_random(folder: Path, rounds: int, seed: int) -> None:
    """Writes that are killed again and again, beside a second writer."""
    catalog = catalog_in(folder)
    write(str(folder), "first", rows(-1))
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    other = start(child_appends, str(folder))
    try:
        for _ in range(rounds):
            child = start(child_writes_for_good, str(folder))
            time.sleep(chance.uniform(0.3, 2))
            child.kill()
            child.join()
    finally:
        other.kill()
        other.join()
    begun = int((folder / "begun").read_text(encoding="utf-8"))
    write(str(folder), f"write {begun}", rows(*range(begun * ROWS, (begun + 1) * ROWS)))
    found = numbers(catalog)
    assert [n for n in found if n < OTHERS_FROM] == list(range(-1, (begun + 1) * ROWS))
    theirs = [n for n in found if n >= OTHERS_FROM]
    assert len(set(theirs)) == len(theirs)


def test_writes_killed_at_random_are_made_once(tmp_path: Path) -> None:
    killed_at_random(tmp_path, 4, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(10))
def test_writes_killed_very_often_are_made_once(tmp_path: Path, seed: int) -> None:
    killed_at_random(tmp_path, 50, seed)
