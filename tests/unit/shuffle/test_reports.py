"""Reports count what ran and say why."""

from __future__ import annotations

from millrace.shuffle.reports import QueryReport, StageReport


def test_a_report_counts_what_ran_and_says_why_once() -> None:
    report = StageReport(
        map_tasks=5, reused=2, seconds=1.25, reasons={0: "new", 1: "new", 2: "x changed"}
    )

    assert report.ran == 3
    assert str(report).splitlines() == [
        "3 map tasks run, 2 reused, 1.2 s",
        "  2 run because: new",
        "  1 run because: x changed",
    ]


def test_a_report_of_a_query_adds_up_its_stages_and_shows_each() -> None:
    maps = StageReport(name="stage 0", map_tasks=3, reused=1, reasons={0: "new", 1: "new"})
    report = QueryReport(
        stages=(maps, StageReport(name="stage 1", map_tasks=1, reused=1)), rows=5, bytes=2048
    )

    assert (report.map_tasks, report.ran, report.reused) == (4, 2, 2)
    assert str(report).splitlines() == [
        "2 map tasks run, 2 reused, 5 rows in 2.0 KiB",
        "stage 0: 2 map tasks run, 1 reused, 0.0 s",
        "  2 run because: new",
        "stage 1: 0 map tasks run, 1 reused, 0.0 s",
    ]
