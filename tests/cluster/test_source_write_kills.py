"""Applications that write with `format("millrace")`, killed with SIGKILL: each row is there once.

A stream is started again and goes on; a batch is there whole or not at all.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.cluster.source_write_kit import BATCH_ROWS, Application
from tests.laws import seeds

pytestmark = pytest.mark.spark
STORED = "source.write.after_store"
BEFORE = "source.commit.before_adopt"
AFTER = "source.commit.after_adopt"
LEFT = {STORED: 0, BEFORE: 0, AFTER: BATCH_ROWS}
"""The rows of a batch that are there when it was killed at these points."""


@pytest.mark.slow
def test_killed_after_a_batch_is_written_and_before_spark_knows_it_is_written_once(
    tmp_path: Path,
) -> None:
    app = Application(tmp_path, "read")
    app.die_at(AFTER, stream=20)
    app.die_at(BEFORE, stream=1, batch="once")  # The stream goes on and ends; then comes a batch.
    app.check_stream()
    assert app.batch_rows("once") == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["read", "files"])
@pytest.mark.parametrize("point", [STORED, BEFORE, AFTER])
def test_killed_at_each_point_the_stream_goes_on_and_a_batch_is_whole_or_not_there(
    point: str, kind: str, tmp_path: Path
) -> None:
    app = Application(tmp_path, kind)
    app.die_at(point, stream=6)
    app.die_at(point, stream=6, batch="once")
    app.check_stream()
    assert app.batch_rows("once") == LEFT[point]
    app.die_at(point, stream=1)
    app.run(stream=1, batch="twice")
    app.check_stream()
    assert app.batch_rows("twice") == BATCH_ROWS


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(4))
def test_killed_at_any_moment_each_row_is_written_once(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)  # noqa: S311 - a seed replays it
    app = Application(tmp_path, "files" if seed % 4 == 3 else "read")
    for number in range(6):
        match chance.randrange(4):
            case 0:
                app.die_at(chance.choice((STORED, BEFORE, AFTER)), stream=chance.randint(1, 12))
            case 1:
                app.die_by_chance(chance, batch=f"batch-{number}")
                app.batch_rows(f"batch-{number}")
            case _:
                app.die_by_chance(chance, stream=chance.randint(1, 12))
    app.run(stream=8)
    app.check_stream()
