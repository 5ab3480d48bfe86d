"""Batches of a streaming query that come again, with writers and owners killed meanwhile.

`tests/cluster/test_source_write_kills.py` does the same to whole applications of Spark.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.laws import seeds
from tests.unit.spark.source.stream_writing_kit import (
    COLUMNS,
    JOURNALS,
    Story,
    check,
    options,
    rows_of,
    run_query,
    run_task,
)

import millrace as mr
from millrace.errors import UserError
from millrace.spark.source.stream_writer import make_writer

WRITING = (
    "source.write.after_store",
    "source.commit.before_adopt",
    "journal.ledger.before_commit",
    "journal.ledger.after_commit",
    "source.commit.after_adopt",
)
"""Where the process that adopts, and owns the journals for that, is killed."""
OWNING = ("owner.call.before", "owner.call.after", "journal.ledger.after_commit")
"""Where an owner is killed that others have joined: its answer is lost, and they ask the next."""
AT_ONCE = ("source.commit.before_adopt", "source.commit.after_adopt", "owner.call.after")
"""Tried in the quick form as well."""


def quick(*points: str) -> list[object]:
    marks = {point: [] if point in AT_ONCE else [pytest.mark.slow] for point in points}
    return [pytest.param(point, marks=mark) for point, mark in marks.items()]


def test_a_batch_that_was_adopted_is_not_adopted_again(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    run_query(tmp_path, 2)
    (tmp_path / "commits" / "1").unlink()  # As if it had died before Spark noted it.
    run_query(tmp_path, 3)
    check(tmp_path, 3)
    (tmp_path / "commits" / "2").unlink()
    (tmp_path / "commits" / "1").unlink()  # Set back.
    with pytest.raises(UserError, match="its last one: 2") as refused:
        run_query(tmp_path, 3)
    assert "batch 1 of query" in str(refused.value)
    check(tmp_path, 3)


def test_a_batch_that_was_adopted_with_other_rows_is_refused_unless_told(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    run_query(tmp_path, 1)
    writer = make_writer(options(tmp_path), COLUMNS, overwrite=False)
    with pytest.raises(UserError, match="before: 8 into out/0, out/1; now: 4"):
        writer.commit([run_task(writer, 0, rows_of(0, 0))], 0)
    writer = make_writer(options(tmp_path, changedBatch="keep"), COLUMNS, overwrite=False)
    writer.commit([run_task(writer, 0, rows_of(0, 0))], 0)
    check(tmp_path, 1)
    writer.commit([run_task(writer, 0, rows_of(0, 0), query="another")], 0)
    with mr.open(tmp_path / "mill") as ws:
        assert sum(ws.journals.read(name, 0).num_rows for name in JOURNALS) == 12


@pytest.mark.parametrize("point", quick(*WRITING))
def test_killed_at_any_point_each_batch_is_written_once(point: str, tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.die_at(point, after=1)
    story.die_at(point, after=1)  # The batch that it died in comes again, and then another.
    story.finish()


@pytest.mark.parametrize("point", quick(*OWNING))
def test_an_owner_killed_at_any_point_costs_and_doubles_no_row(point: str, tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.lose_owner(point)
    story.finish()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20))
def test_whatever_is_killed_each_batch_is_written_once(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    story = Story(tmp_path)
    for _ in range(10):
        match chance.randrange(4):
            case 0:
                story.die_at(chance.choice(WRITING), after=chance.randint(1, 2))
            case 1:
                story.lose_owner(chance.choice(OWNING))
            case _:
                story.die_by_chance(chance)
    story.finish()
