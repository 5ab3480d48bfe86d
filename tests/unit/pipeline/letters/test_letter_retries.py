"""Dead letters that are given back to their step: each once, at the step that refused it."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.pipeline.letters.letters_kit import (
    CHUNK,
    ROWS,
    bench_of,
    child_retries,
    mend,
    refusing_hop,
    sink_hop,
)
from tests.unit.pipeline.worker.worker_kills_kit import KILLED, in_child, lines
from tests.unit.pipeline.worker.worker_kit import JOB, Bench, dead, output

from millrace.errors import LeaseHeld, UserError
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core import hops
from millrace.pipeline.letters.letter_retries import retry_dead_letters
from millrace.pipeline.letters.open_letters import open_letters
from millrace.pipeline.run.job_status import job_status
from millrace.pipeline.run.reset import reset_step

CHEAP_SEVENS = [7, 14, 21, 28]
CHEAP_FIVES = [5, 10, 15, 20, 25]
LEFT = [x for x in range(1, ROWS) if x % 7 and x % 5]
PAID_SEVENS = [1 + x for x in LEFT if (1 + x) % 7 == 0]
PAID_FIVES = [1 + x for x in LEFT if (1 + x) % 5 == 0 and (1 + x) % 7]


def open_rows(bench: Bench, step: str) -> Counter[str]:
    return Counter(letter.kind for letter in open_letters(bench.broker, JOB, step))


def ended(bench: Bench) -> Bench:
    """The run is over."""
    bench.broker.fence(hops.run_lease(JOB))
    return bench.again()


def test_rows_come_back_to_the_step_that_refused_them_and_each_once(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, refusing_hop(tmp_path), MemoryBroker())
    bench.run()
    assert open_rows(bench, "cheap") == {"ValueError": 4, "LookupError": 5}
    assert open_rows(bench, "pay") == {
        "ValueError": len(PAID_SEVENS),
        "LookupError": len(PAID_FIVES),
    }
    mend(tmp_path)
    bench = ended(bench)

    first = retry_dead_letters(bench.broker, JOB, kind="ValueError")
    again = retry_dead_letters(bench.broker, JOB, kind="ValueError")
    bench.run()

    assert first == {"cheap": 4, "pay": len(PAID_SEVENS)}
    assert again == {}
    assert open_rows(bench, "cheap") == {"LookupError": 5}
    assert open_rows(bench, "pay") == {"LookupError": len(PAID_FIVES)}
    bench = ended(bench)
    assert retry_dead_letters(bench.broker, JOB) == {"cheap": 5, "pay": len(PAID_FIVES)}
    bench.run()

    assert sorted(output(bench.broker, "pay")) == sorted(-1 - x for x in range(1, ROWS))
    (step,) = job_status(bench.broker, JOB).steps
    assert (step.dead_letters, step.backlog, step.rows_out) == (0, 0, ROWS - 1)
    calls = Counter(map(int, lines(tmp_path / "cheap.log")))
    assert {x for x, count in calls.items() if count == 2} == {*CHEAP_SEVENS, *CHEAP_FIVES}


def test_a_row_that_is_refused_again_is_a_dead_letter_again(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, sink_hop(tmp_path), MemoryBroker())
    bench.run()
    before = open_rows(bench, "send")
    bench = ended(bench)

    retry_dead_letters(bench.broker, JOB, "send", "LookupError")
    bench.run()

    assert open_rows(bench, "send") == before
    assert len(dead(bench.broker, "send")) == before.total() + before["LookupError"]
    mend(tmp_path)
    bench = ended(bench)
    retry_dead_letters(bench.broker, JOB)
    bench.run()
    assert open_rows(bench, "send") == {}


@pytest.mark.parametrize("point", ["job.letters.before", "job.letters.after"])
@pytest.mark.parametrize("chunk", [0, 1])
def test_a_retry_that_is_killed_and_made_again_gives_each_row_back_once(
    tmp_path: Path, point: str, chunk: int
) -> None:
    with contextlib.closing(EmbeddedBroker.open(str(tmp_path / "mill"))) as broker:
        bench_of(tmp_path, refusing_hop(tmp_path), broker).run()
        letters = list(open_letters(broker, JOB, "cheap"))
        letter = letters[chunk * CHUNK].offset  # Offsets are not dense.
    mend(tmp_path)

    assert in_child(child_retries, str(tmp_path), f"{point}@{letter}") == KILLED
    assert in_child(child_retries, str(tmp_path), "") == 0

    with contextlib.closing(EmbeddedBroker.open(str(tmp_path / "mill"))) as broker:
        bench = ended(Bench(tmp_path, [refusing_hop(tmp_path)], broker=broker))
        bench.run()
        assert sorted(output(broker, "pay")) == sorted(-1 - x for x in range(1, ROWS))
        assert open_rows(bench, "cheap") == open_rows(bench, "pay") == {}


def test_a_job_that_runs_and_a_step_that_is_none_are_refused(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, refusing_hop(tmp_path), MemoryBroker())
    bench.run()

    with pytest.raises(LeaseHeld, match="to fix: stop it first"):
        retry_dead_letters(bench.broker, JOB)
    bench = ended(bench)
    with pytest.raises(UserError, match="no step 'paid'"):
        retry_dead_letters(bench.broker, JOB, "paid")
    assert open_rows(bench, "cheap").total() == 9


def test_a_reset_forgets_what_was_retried(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, refusing_hop(tmp_path), MemoryBroker())
    bench.run()
    bench = ended(bench)
    retry_dead_letters(bench.broker, JOB)

    reset_step(bench.broker, JOB, "pay")
    mend(tmp_path)
    bench.run()

    assert sorted(output(bench.broker, "pay")) == sorted(-1 - x for x in range(1, ROWS))
