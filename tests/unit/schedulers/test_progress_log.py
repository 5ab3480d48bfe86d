"""Lines in a scheduler's log."""

from __future__ import annotations

from tests.unit.schedulers.stand_ins import report

from millrace.pipeline.report.job_report import StepReport
from millrace.schedulers.progress_log import ProgressLog, outcome_of


def test_lines_come_every_few_seconds_and_only_if_something_moved() -> None:
    times, lines = [0.0, 5.0, 10.0, 20.0, 30.0], list[str]()
    log = ProgressLog(lines.append, every_s=10, clock=iter(times).__next__)

    for rows in (0, 10, 20, 20, 30):
        log.on_progress([StepReport(name="ask", rows_in=rows, backlog=40 - rows, calls=rows)])

    assert lines == [
        "ask: 0 of 40 rows, 0 calls, 0 rows/s, ? left",
        "ask: 20 of 40 rows, 20 calls, 2 rows/s, 10 s left",
        "ask: 30 of 40 rows, 30 calls, 1 rows/s, 10 s left",
    ]


def test_a_report_is_kept_and_written_after_how_to_see_the_job() -> None:
    lines = list[str]()
    log = ProgressLog(lines.append, every_s=10)

    log.on_page("millrace ui export /mill paid")
    log.on_report(report("failed"))

    assert log.report is not None
    assert "to go on: repair what the error says" in lines[1]
    assert lines[0] == "page: millrace ui export /mill paid"
    outcome = outcome_of(log.report, log.page)
    assert outcome["steps"]["ask"]["in_doubt"] == 2
    assert outcome["page"] == "millrace ui export /mill paid"
