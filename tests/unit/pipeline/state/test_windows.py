"""Windows of event time, with late and disordered rows of several journals; DuckDB is the judge."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.pipeline.state.state_kit import (
    STATE_CONFIG,
    asked,
    bench,
    came_out,
    defined_hops,
    folded,
    give,
    state_of,
)
from tests.unit.pipeline.worker.worker_kit import JOB

from millrace.errors import UserError
from millrace.pipeline.core import hops
from millrace.pipeline.define.steps import Step
from millrace.pipeline.worker.state_turn import QuietJournals

CLICKS = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
SMALL = STATE_CONFIG.with_options(journal_read_rows_max=64)


def clicks(count: int, jitter_s: int, seed: int = 1) -> pa.Table:
    """A row each 10 seconds, disordered by up to so many seconds."""
    chance = np.random.default_rng(seed)
    seconds = np.arange(count) * 10 + chance.integers(0, jitter_s + 1, count)
    times = pa.array(seconds * 1_000_000, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        [chance.integers(0, 4, count), times, chance.integers(0, 100, count)], schema=CLICKS
    )


def windows_of(rows: pa.Table, size_s: int, slide_s: int) -> set[tuple[object, ...]]:
    """What a judge says, by joining rows with the windows they lie in."""
    return asked(
        f"""WITH r AS (SELECT *, epoch_us(ts) // 1000000 AS s FROM rows),
        w AS (SELECT "user", v, s // {slide_s} * {slide_s} - k * {slide_s} AS b
              FROM r, range({size_s // slide_s}) t(k))
        SELECT "user", b, b + {size_s}, count(*), CAST(sum(v) AS BIGINT) FROM w GROUP BY ALL""",
        rows=rows,
    )


def shown(rows: set[tuple[object, ...]]) -> set[tuple[object, ...]]:
    """Times of windows as seconds."""
    return {
        (user, int(begin.timestamp()), int(end.timestamp()), *values)  # type: ignore[attr-defined]
        for user, begin, end, *values in rows
    }


@pytest.mark.parametrize(("size_s", "slide_s"), [(60, 60), (120, 30)])
def test_windows_that_never_close_are_those_of_the_query(
    tmp_path: Path, size_s: int, slide_s: int
) -> None:
    rows = clicks(500, jitter_s=300)
    spans = {"tumbling": size_s} if size_s == slide_s else {"sliding": (size_s, slide_s)}
    made = defined_hops(
        CLICKS,
        lambda source: source.key_by("user").window("out", **spans, n="count(*)", total="sum(v)"),
    )
    job = bench(tmp_path, made, SMALL)
    give(job.broker, rows)

    job.run(workers=2)

    expected = windows_of(rows, size_s, slide_s)
    changes = folded(came_out(job.broker, "out"), ["user", "window_start"])
    assert shown(changes) == expected
    assert shown(state_of(job, "out")) == expected


@pytest.mark.parametrize("workers", [1, 3])
def test_a_closed_window_comes_out_once_and_has_all_rows_that_were_in_time(
    tmp_path: Path, workers: int
) -> None:
    rows = clicks(800, jitter_s=60)
    made = defined_hops(
        CLICKS,
        lambda source: source.key_by("user", partitions=2).window(
            "out", tumbling="2 minutes", late="1 minute", emit="close", n="count(*)", total="sum(v)"
        ),
    )
    job = bench(tmp_path, made, SMALL)
    give(job.broker, rows)

    job.run(workers=workers)

    expected = windows_of(rows, 120, 120)
    out = came_out(job.broker, "out")
    closed = shown({tuple(row.values()) for row in out.to_pylist()})
    assert len(closed) == out.num_rows
    still_open = shown(state_of(job, "out"))
    assert closed | still_open == expected
    assert not closed & still_open
    assert len(still_open) < len(expected) / 10


def test_rows_that_are_too_late_are_left_out_whatever_the_order_of_journals(
    tmp_path: Path,
) -> None:
    """Late is a row behind others of its own journal, so that it does not depend on chance."""
    kept = set()
    for number in range(3):
        job = bench(
            tmp_path / str(number),
            defined_hops(
                CLICKS,
                lambda source: source.key_by("user", partitions=2).window(
                    "out", tumbling="2 minutes", late="5 seconds", n="count(*)", total="sum(v)"
                ),
            ),
            SMALL.with_options(journal_read_rows_max=30 + 50 * number),
        )
        give(job.broker, clicks(800, jitter_s=60), partitions=2)

        (outcome, *_) = job.run(workers=1)

        changes = came_out(job.broker, "out")
        kept.add(frozenset(folded(changes, ["user", "window_start"])))
        assert outcome.skipped["out"] > 0
    assert len(kept) == 1


@pytest.mark.parametrize("idle", [None, "1ms"])
def test_a_journal_without_new_rows_holds_windows_open_unless_it_counts_as_idle(
    tmp_path: Path, idle: str | None
) -> None:
    made = defined_hops(
        CLICKS,
        lambda source: source.key_by("user", partitions=1).window(
            "out", tumbling="1 minute", late="0s", idle=idle, emit="close", n="count(*)"
        ),
    )
    job = bench(tmp_path, made, SMALL.with_options(journal_read_rows_max=20, job_turn_ms=5))
    rows = clicks(400, jitter_s=0)
    give(job.broker, rows.slice(0, 20), partitions=2)
    job.run()
    job = job.again().start()
    worker, pause = job.worker(), threading.Event()
    thread = threading.Thread(target=worker.run)
    thread.start()
    for first in (20, 210):  # The second turn knows for how long the other journal was quiet.
        job.broker.append(hops.output_journal(JOB, "src", 0), rows.slice(first, 190))
        while not job.is_done():
            pause.wait(0.005)
    worker.stop()
    thread.join(60)

    closed = came_out(job.broker, "out").num_rows
    assert closed < 20 if idle is None else closed > 100


def test_a_journal_is_quiet_from_the_moment_its_end_was_first_seen() -> None:
    quiet = QuietJournals()
    assert quiet.seconds("a", 5, 100.0) == 0
    assert quiet.seconds("b", 5, 103.0) == 0
    assert quiet.seconds("a", 5, 104.0) == 4
    assert quiet.seconds("a", 6, 105.0) == 0
    assert quiet.seconds("a", 6, 105.5) == 0.5


def test_idle_needs_late() -> None:
    with pytest.raises(UserError, match="idle without late"):
        defined_hops(
            CLICKS,
            lambda source: source.key_by("user").window(
                "out", tumbling="1 minute", idle="1 minute", n="count(*)"
            ),
        )


def test_rows_that_have_a_window_already_are_refused() -> None:
    def windows_of_windows(source: Step) -> Step:
        by_user = source.key_by("user")
        closed = by_user.window("in", tumbling="1m", late="1m", emit="close", n="count(*)")
        return closed.key_by("user").window("out", tumbling="5m", time="window_end", m="max(n)")

    with pytest.raises(UserError, match="a column 'window_start' already"):
        defined_hops(CLICKS, windows_of_windows)
