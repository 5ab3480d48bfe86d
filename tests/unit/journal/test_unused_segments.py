"""Unused segment files are found by a search for each file, not by a scan of all ranges."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from millrace.journal.embedded.ledger import ledger_tables
from millrace.journal.embedded.ledger.table_reader import check_tables, make_tables

SEGMENTS, UNUSED = 40, {7, 31}


@pytest.fixture
def ledger() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        make_tables(db)
        yield db


def fill(db: sqlite3.Connection, ranges: int) -> None:
    """Ranges in closed segments but for two, one open segment, and rows in the ledger itself."""
    db.execute("BEGIN")
    for number in range(1, SEGMENTS + 2):
        is_open = number == SEGMENTS + 1
        values = (number, 1, f"segments/1/{number}.ipc", 100, 10, is_open, 0)
        db.execute("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    used = [number for number in range(1, SEGMENTS + 1) if number not in UNUSED]
    rows = (
        (1, offset, offset + 1, 1, offset, 1, 10, "c", used[offset % len(used)], 0, None)
        for offset in range(ranges)
    )
    db.executemany(
        "INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL)", rows
    )
    waiting = (1, ranges, ranges + 1, 1, ranges, 1, 10, "c", None, None, 1)
    db.execute(
        "INSERT INTO ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL)", waiting
    )
    db.execute("COMMIT")


def found(db: sqlite3.Connection) -> tuple[set[int], int]:
    """The unused segments, and how many steps of SQLite's machine it took to find them."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    db.set_progress_handler(count, 1)
    rows = db.execute(ledger_tables.UNUSED_SEGMENTS).fetchall()
    db.set_progress_handler(None, 0)
    return {row[0] for row in rows}, steps


def test_the_work_is_the_same_with_a_hundred_times_as_many_ranges() -> None:
    taken = []
    for ranges in (200, 2_000, 20_000):
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            make_tables(db)
            fill(db, ranges)
            unused, steps = found(db)
            assert unused == UNUSED
            taken.append(steps)

    assert len(set(taken)) == 1
    assert taken[0] <= 30 * SEGMENTS


def test_the_query_searches_the_index(ledger: sqlite3.Connection) -> None:
    fill(ledger, 100)

    plan = [row[3] for row in ledger.execute(f"EXPLAIN QUERY PLAN {ledger_tables.UNUSED_SEGMENTS}")]

    assert any("SEARCH ranges USING COVERING INDEX ranges_of_segment" in line for line in plan)
    assert not any("SCAN ranges" in line for line in plan)


def test_a_ledger_of_an_earlier_version_gets_the_index_when_it_is_opened_to_be_written(
    ledger: sqlite3.Connection, tmp_path: Path
) -> None:
    ledger.execute("DROP INDEX ranges_of_segment")
    fill(ledger, 100)

    def has_index() -> bool:
        text = "SELECT count(*) FROM sqlite_master WHERE name = 'ranges_of_segment'"
        return bool(ledger.execute(text).fetchone()[0])

    check_tables(ledger, str(tmp_path), is_read_only=True)
    assert not has_index()
    assert found(ledger)[0] == UNUSED
    check_tables(ledger, str(tmp_path))
    assert has_index()
    assert found(ledger)[0] == UNUSED
