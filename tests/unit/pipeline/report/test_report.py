"""What a run did, as text, JSON and a page."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from tests.unit.pipeline.played_kit import record

from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.report.job_progress import JobProgress, time_left
from millrace.pipeline.report.job_report import (
    JobReport,
    RunEntry,
    Sample,
    StepReport,
    recorded,
    thinned,
)

WICKED = "<script>alert('\"&')</script>"


def report(**changes: object) -> JobReport:
    parts = record()
    steps = (
        StepReport(
            name="caption",
            rows_in=12000,
            rows_out=11990,
            calls=12016,
            calls_now=6008,
            reused=6000,
            in_doubt=16,
            dead_letters=10,
            seconds=118.0,
            in_function=0.97,
            rows_per_s=200.0,
        ),
        StepReport(name="by_user", rows_in=11990, rows_out=8000, rows_per_s=199.0),
        StepReport(name="out", rows_in=8000),
    )
    runs = (
        RunEntry(number=1, started_us=10**15, ended_us=None, state="killed", who="ann"),
        RunEntry(number=2, started_us=2 * 10**15, ended_us=3 * 10**15, state="finished"),
    )
    samples = tuple(Sample(float(t), (200 * t, 190 * t, 100 * (t // 2))) for t in range(61))
    given: dict[str, object] = {
        "job": "captions",
        "run": 2,
        "state": "finished",
        "seconds": 60.25,
        "record": parts,
        "steps": steps,
        "runs": runs,
        "samples": samples,
    }
    return JobReport(**(given | changes))  # type: ignore[arg-type]


def test_text_has_every_count() -> None:
    text = str(report())

    assert text.splitlines()[0] == "job captions, run 2: finished after 60.2 s"
    line = next(line for line in text.splitlines() if "caption " in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == [
        *("caption", "12,000", "11,990", "0", "12,016", "6,008", "6,000", "16", "0", "0", "10"),
        *("118.0", "200", "97%"),
    ]


@pytest.mark.parametrize("state", ["spent", "failed", "interrupted", "held"])
def test_a_run_that_did_not_finish_says_how_to_go_on(state: str) -> None:
    assert "to go on: " in str(report(state=state))


def test_json_has_everything() -> None:
    document = json.loads(report().to_json())

    assert document["steps"][0]["in_doubt"] == 16
    assert document["runs"][0]["state"] == "killed"
    assert len(document["samples"]) == 61
    assert JobRecord.from_json(document["record"]) == record()


def test_the_record_of_a_run_keeps_some_samples_and_the_last() -> None:
    many = tuple(Sample(float(t), (t,)) for t in range(5_000))

    kept = json.loads(json.dumps(recorded(report(samples=many))))

    assert len(kept["samples"]) <= 60
    assert kept["samples"][-1] == {"at_s": 4_999.0, "rows_in": [4_999]}
    assert kept["state"] == "finished"


def test_samples_are_thinned_and_keep_both_ends() -> None:
    samples = [Sample(float(t), (t,)) for t in range(1000)]

    kept = thinned(samples, 100)

    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (samples[0], samples[-1])
    assert [one.at_s for one in kept] == sorted({one.at_s for one in kept})
    assert thinned(samples[:3], 100) == samples[:3]


def test_progress_is_silent_where_nobody_looks() -> None:
    quiet = Console(file=io.StringIO(), force_terminal=False)

    with JobProgress(quiet) as progress:
        progress.show(report().steps)

    assert quiet.file.getvalue() == ""  # type: ignore[attr-defined]


def test_progress_draws_a_line_for_each_step() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)

    with JobProgress(screen) as progress:
        progress.show(report().steps)

    drawn = screen.file.getvalue()  # type: ignore[attr-defined]
    assert all(name in drawn for name in ("caption", "by_user", "out", "12,016", "rows/s"))


def test_rates_are_those_of_the_last_seconds() -> None:
    progress = JobProgress(Console(file=io.StringIO()))

    for second in range(30):
        rate = progress.rates([StepReport(name="a", rows_in=10 * min(second, 20))], float(second))

    assert rate == {"a": pytest.approx(10 / 10)}
    assert [time_left(0, 5), time_left(10, 0), time_left(100, 10), time_left(9000, 10)] == [
        *("", "?", "10 s", "15:00 min")
    ]
    assert time_left(1_000_000, 10) == "27:46 h"
