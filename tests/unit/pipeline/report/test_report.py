"""What a run did, as text, JSON and a page."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from tests.unit.pipeline.played_kit import record

from millrace.pipeline.core.job_record import JobPart, JobRecord
from millrace.pipeline.report.job_progress import JobProgress, time_left
from millrace.pipeline.report.job_report import JobReport, RunEntry, Sample, StepReport, thinned
from millrace.pipeline.report.report_pictures import nice_top, short

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
def test_a_run_that_did_not_finish_says_how_to_go_on(state: str, tmp_path: Path) -> None:
    assert "to go on: " in str(report(state=state))
    written = report(state=state).write_html(str(tmp_path / "report.html"))
    assert "To go on: " in Path(written).read_text(encoding="utf-8")


def test_json_has_everything() -> None:
    document = json.loads(report().to_json())

    assert document["steps"][0]["in_doubt"] == 16
    assert document["runs"][0]["state"] == "killed"
    assert len(document["samples"]) == 61
    assert JobRecord.from_json(document["record"]) == record()


class Page(HTMLParser):
    """Tags, texts and anything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == [], "every tag is closed"
    return page


def test_the_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    path = report().write_html(str(tmp_path / "deep" / "report.html"))

    text = Path(path).read_text(encoding="utf-8")
    page = read(text)
    assert page.fetched == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2
    assert page.tags.count("polyline") == 3, "a line for each step"
    assert {"12,016 calls, 16 in doubt", "8k", "killed", "97%"} <= set(page.texts)
    assert list(tmp_path.rglob("*.tmp")) == []


def test_what_users_named_is_escaped() -> None:
    parts = (
        JobPart(name=WICKED, kind="source"),
        JobPart(name="b", kind="map", inputs=(WICKED,)),
    )
    wicked = report(
        job=WICKED,
        note=WICKED,
        record=JobRecord(WICKED, parts),
        steps=(StepReport(name="b"),),
        samples=(Sample(0.0, (1,)), Sample(1.0, (5,)), Sample(2.0, (6,))),
        runs=(RunEntry(number=1, started_us=1, ended_us=2, state="failed", who=WICKED),),
    )
    from millrace.pipeline.report.report_page import page

    assert "script" not in read(page(wicked)).tags


def test_a_run_without_samples_has_a_page_too() -> None:
    from millrace.pipeline.report.report_page import page

    assert "too short to draw" in page(report(samples=()))
    assert "too short to draw" in page(report(samples=(Sample(0.0, (0, 0, 0)),)))
    read(page(report(steps=(), record=JobRecord("captions", ()), samples=())))


def test_samples_are_thinned_and_keep_both_ends() -> None:
    samples = [Sample(float(t), (t,)) for t in range(1000)]

    kept = thinned(samples, 100)

    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (samples[0], samples[-1])
    assert [one.at_s for one in kept] == sorted({one.at_s for one in kept})
    assert thinned(samples[:3], 100) == samples[:3]


def test_axes_end_at_round_numbers() -> None:
    assert [nice_top(v) for v in (0, 0.3, 1, 7, 10, 120, 4999)] == [1, 0.5, 1, 10, 10, 200, 5000]
    assert [short(v) for v in (0, 7, 950, 1200, 3_400_000, 2.5)] == [
        *("0", "7", "950", "1.2k", "3.4M", "2.5")
    ]


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
