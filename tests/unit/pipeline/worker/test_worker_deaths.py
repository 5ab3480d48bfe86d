"""A function that ends its process fails the call of that row, and costs no other row."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.pipeline.worker.worker_deaths_kit import (
    BATCH_ROWS,
    CONCURRENCY,
    GUILTY,
    PAID_ROWS,
    ROWS,
    Plan,
    begin,
    fence_workers,
    opened,
    work,
    work_to_the_end,
)
from tests.unit.pipeline.worker.worker_kills_kit import in_child
from tests.unit.pipeline.worker.worker_kit import JOB, dead, happened, output, totals

from millrace.pipeline.calling.call_file import CallFile
from millrace.pipeline.core.job_events import JobEventKind

OTHERS = [-x for x in range(ROWS) if x != GUILTY]


def planned(folder: Path, **how: object) -> Plan:
    folder.mkdir(exist_ok=True)
    return Plan(folder=str(folder), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("row", "_exit"),
        ("row", "segmentation fault"),
        ("timed", "kill"),
        pytest.param("batch", "kill", marks=pytest.mark.slow),
        pytest.param("row", "kill", marks=pytest.mark.slow),
        pytest.param("timed", "segmentation fault", marks=pytest.mark.slow),
        pytest.param("batch", "_exit", marks=pytest.mark.slow),
    ],
)
def test_each_row_is_called_for_as_often_as_if_the_function_had_raised(
    tmp_path: Path, kind: str, way: str
) -> None:
    raising = planned(tmp_path / "raises", kind=kind, way="raise")
    assert work_to_the_end(raising) == []
    plan = planned(tmp_path / "dies", kind=kind, way=way)

    died = work_to_the_end(plan)

    assert plan.calls() == raising.calls()
    assert len(died) == raising.calls()[GUILTY] >= 2
    if kind != "batch":
        assert plan.calls() == {x: 1 + (x == GUILTY) for x in range(ROWS)}
    broker = opened(plan)
    assert output(broker, "f") == OTHERS
    (letter,) = dead(broker, "f")
    assert letter["row"] == {"x": GUILTY}
    assert "the process of the worker ended in the call for this row" in letter["error"]
    found, expected = totals(broker, "f"), totals(opened(raising), "f")
    assert (found.calls, found.errors) == (expected.calls, expected.errors)
    assert (found.skipped, found.dead_letters, found.in_doubt) == (1, 1, len(died))


def test_calls_that_were_under_way_together_are_made_again_one_by_one(tmp_path: Path) -> None:
    plan = planned(tmp_path, kind="async", way="kill")

    died = work_to_the_end(plan)

    calls = plan.calls()
    assert len(died) == calls[GUILTY] == 2
    assert calls.total() - ROWS - 1 <= CONCURRENCY - 1, "only what was under way is paid again"
    broker = opened(plan)
    assert sorted(output(broker, "f")) == sorted(OTHERS)
    assert [letter["row"]["x"] for letter in dead(broker, "f")] == [GUILTY]
    assert calls.total() - ROWS <= totals(broker, "f").in_doubt <= CONCURRENCY + 1


@pytest.mark.parametrize("kind", ["row", pytest.param("async", marks=pytest.mark.slow)])
def test_a_cheap_step_runs_what_it_had_not_published_once_more_and_no_oftener(
    tmp_path: Path, kind: str
) -> None:
    plan = planned(tmp_path, kind=kind, expensive=False, retries=2)

    died = work_to_the_end(plan)

    calls = plan.calls()
    assert len(died) == calls[GUILTY] == 3
    assert {calls[x] for x in range(ROWS) if x != GUILTY} <= {1, 2}
    broker = opened(plan)
    assert sorted(output(broker, "f")) == sorted(OTHERS)
    assert [letter["row"]["x"] for letter in dead(broker, "f")] == [GUILTY]


def test_of_several_rows_that_were_made_of_one_only_the_guilty_one_is_given_up(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, kind="fused", expensive=False)

    assert len(work_to_the_end(plan)) == 2

    broker = opened(plan)
    wanted = {-x for x in range(2 * ROWS)} - {-GUILTY}
    assert sorted(output(broker, "f")) == sorted(wanted)
    assert [letter["row"]["x"] for letter in dead(broker, "f")] == [GUILTY]
    assert plan.calls()[GUILTY] == 2


def test_a_function_sink_that_ends_its_process_gets_every_other_row_once(tmp_path: Path) -> None:
    plan = planned(tmp_path, kind="sink")

    assert len(work_to_the_end(plan)) == 2

    assert plan.calls() == {x: 1 + (x == GUILTY) for x in range(ROWS)}
    broker = opened(plan)
    assert [letter["row"]["x"] for letter in dead(broker, "f")] == [GUILTY]
    assert broker.committed(f"jobs/{JOB}/f", f"jobs/{JOB}/src/out/0") == ROWS


def test_files_that_nobody_of_the_job_wrote_are_not_followed(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    folder = tmp_path / "jobs" / JOB / "calls"
    folder.mkdir(parents=True)
    for name, header in (("f.1.1", {}), ("f.1.2", {"hop": "f", "journal": 1, "leases": [1]})):
        CallFile.open(str(folder / name), header, slots=1).close()
    (folder / "f.1.3").write_bytes(b"what is this")
    (folder / "f.1.4").symlink_to("/etc/passwd")

    assert len(work_to_the_end(plan)) == 2

    assert plan.calls() == {x: 1 + (x == GUILTY) for x in range(ROWS)}


@pytest.mark.parametrize("expensive", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_step_that_fails_says_how_often_the_process_ended(
    tmp_path: Path, *, expensive: bool
) -> None:
    plan = planned(tmp_path, on_error="fail", expensive=expensive, retries=0)

    assert len(work_to_the_end(plan)) == 1

    broker = opened(plan)
    told = [event for event in happened(broker) if event.happened is JobEventKind.FAILED]
    assert [(event.step, event.detail["offset"]) for event in told] == [("f", GUILTY)]
    assert told[0].detail["attempts"] == 1
    assert "the process of the worker ended" in told[0].detail["error"]
    assert "once" in told[0].detail["error"]
    assert output(broker, "f") == OTHERS[:GUILTY]
    assert plan.calls()[GUILTY] == 1


def test_where_no_host_tells_the_row_is_found_by_calling_one_row_at_a_time(tmp_path: Path) -> None:
    plan = planned(tmp_path, loses_host=True)

    died = work_to_the_end(plan)

    calls = plan.calls()
    assert len(died) == calls[GUILTY] == 3, "the first death names no row"
    assert {calls[x] for x in range(ROWS) if x != GUILTY} <= {1, 2}
    broker = opened(plan)
    assert output(broker, "f") == OTHERS
    assert [letter["row"]["x"] for letter in dead(broker, "f")] == [GUILTY]
    assert calls.total() - ROWS <= totals(broker, "f").in_doubt


def test_a_function_that_ends_its_process_leaves_nothing_behind_when_the_job_is_done(
    tmp_path: Path,
) -> None:
    plan = replace(planned(tmp_path), on_doubt="skip")

    assert len(work_to_the_end(plan)) == 1

    assert plan.calls() == dict.fromkeys(range(ROWS), 1), "a call in doubt is not made again"
    assert list((tmp_path / "jobs" / JOB / "calls").iterdir()) == []


@pytest.mark.parametrize("way", ["raise", "kill", pytest.param("_exit", marks=pytest.mark.slow)])
def test_a_cheap_function_in_front_of_paid_calls_that_ends_its_process_costs_no_call(
    tmp_path: Path, way: str
) -> None:
    plan = planned(tmp_path, kind="front", way=way, expensive=False)

    died = work_to_the_end(plan)

    assert len(died) == (0 if way == "raise" else 2), "as often as retries allow"
    assert plan.calls("paid.log") == dict.fromkeys(OTHERS, 1)
    assert plan.calls()[GUILTY] == 2
    broker = opened(plan)
    assert output(broker, "pay") == OTHERS
    (letter,) = dead(broker, "f")
    assert letter["row"] == {"x": GUILTY}
    assert totals(broker, "pay").in_doubt == 0
    broker.close()


def test_paid_results_are_safe_before_the_cheap_function_in_front_is_called_again(
    tmp_path: Path,
) -> None:
    guilty = BATCH_ROWS + 1
    plan = planned(tmp_path, kind="front", expensive=False, loses_host=True, guilty=guilty)
    begin(plan)
    for _ in range(2):
        assert in_child(work, plan) != 0
        shutil.rmtree(tmp_path / "jobs" / JOB / "calls")
        fence_workers(plan, "pay")

    safe = [-x for x in range(BATCH_ROWS - BATCH_ROWS % PAID_ROWS)]
    assert plan.calls("paid.log") == dict.fromkeys(safe, 1)
    broker = opened(plan)
    assert output(broker, "pay") == safe
    assert totals(broker, "pay").in_doubt == 0
    broker.close()


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead_letter"])
def test_a_cheap_function_that_raises_in_front_of_paid_calls_ends_as_in_a_hop_of_its_own(
    tmp_path: Path, on_error: str
) -> None:
    plan = planned(tmp_path, kind="front", way="raise", expensive=False, on_error=on_error)

    assert work_to_the_end(plan) == []

    broker = opened(plan)
    events = [event for event in happened(broker) if event.happened is JobEventKind.FAILED]
    if on_error == "fail":
        assert output(broker, "pay") == [-x for x in range(GUILTY)], "rows in front of it are done"
        assert [(event.step, event.detail["offset"]) for event in events] == [("f", GUILTY)]
    else:
        assert output(broker, "pay") == OTHERS
        assert events == []
    if on_error == "dead_letter":
        assert [letter["offset"] for letter in dead(broker, "f")] == [GUILTY]
    assert set(plan.calls("paid.log").values()) == {1}
    broker.close()
