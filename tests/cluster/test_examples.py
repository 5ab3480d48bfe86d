"""The seven examples run by themselves, as their reader would run them, and show what they say.

Each starts Spark in a process of its own. Here, and so once, not in each mode.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest

pytestmark = pytest.mark.spark
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LINES_MAX = 59
TIMEOUT_S = 600
TRIES = 5
KEPT = "SPARK_SUBMIT_OPTS"
"""Java options, which decide how fast it is and nothing else."""
TOO_BUSY = "Python worker failed to connect back"
"""Spark gives a process ten seconds to start. Where that is not enough the example is run again."""


def run(number: str, folder: Path) -> str:
    """What an example prints, run in an empty folder, where it leaves one folder to look at."""
    (example,) = (path for path in EXAMPLES if path.name.startswith(f"{number}_"))
    environment = {
        name: value
        for name, value in os.environ.items()
        if name == KEPT or not name.startswith(("SPARK_", "PYSPARK_", "MILLRACE_"))
    }
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, str(example)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if TOO_BUSY not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert os.listdir(folder) == [f"example-{number}"]
    return done.stdout


def numbers(pattern: str, text: str) -> list[tuple[int, ...]]:
    """The numbers in each line that the pattern fits."""
    return [tuple(map(int, found.groups())) for found in re.finditer(pattern, text)]


def test_there_are_seven_and_they_are_short() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES}

    assert [name[:3] for name in lengths] == ["01_", "02_", "03_", "04_", "05_", "06_", "07_"]
    assert {name: count for name, count in lengths.items() if count > LINES_MAX} == {}


@pytest.mark.slow
def test_01_the_join_goes_on_behind_what_the_killed_run_finished(tmp_path: Path) -> None:
    said = run("01", tmp_path)
    stages = numbers(r"stage (\d): (\d+) map tasks? run, (\d+) reused", said)

    assert "first run: killed by signal 9 before the join" in said
    before, after = stages[:2], stages[2:]
    assert before == [(0, 0, 6), (1, 0, 2)]
    assert [stage for stage, ran, reused in after if ran > 0 == reused] == [2, 3]
    # Customers below 2000 have three orders each, and every third of them is from Peru.
    assert re.search(r"PERU *\| *\d+\|2001", said)
    assert re.search(r"JAPAN *\| *\d+\|3999", said)


@pytest.mark.slow
def test_02_the_model_is_loaded_for_a_worker_and_called_for_new_files_alone(tmp_path: Path) -> None:
    said = run("02", tmp_path)

    scored = numbers(r"(\d+) files scored now, (\d+) were done before", said)
    loads = numbers(r"the model was loaded (\d+) times for 16 files", said)
    files = ds.dataset(tmp_path / "example-02" / "labels").to_table()["file"].to_pylist()

    assert scored == [(12, 0), (4, 12)]
    assert 1 <= loads[0][0] < 16
    assert sorted(files) == [f"{number:02}.img" for number in range(16)]


@pytest.mark.slow
def test_03_the_budget_stops_the_job_and_no_answer_is_paid_for_twice(tmp_path: Path) -> None:
    said = run("03", tmp_path)
    (first, second) = numbers(r"budget (\d+): \w+. (\d+) calls now, (\d+) in all", said)

    assert "budget 25: spent" in said
    assert "budget 100: finished" in said
    assert 0 < first[1] == first[2] <= 25
    assert first[2] + second[1] == second[2] >= 40
    assert "40 questions done, 0 to do, 1 dead letters" in said
    assert "invoice: 39 answers to 39 questions" in said
    assert "paid twice: 0" in said


@pytest.mark.slow
def test_04_no_batch_shows_half_a_transfer_and_all_are_shown(tmp_path: Path) -> None:
    said = run("04", tmp_path)

    batches = numbers(r"batch \d+: (\d+) rows, .*debits': (\d+), .*credits': (\d+)", said)
    ((transfers, rolled_back, moved, shown),) = numbers(
        r"(\d+) transfers, (\d+) rolled back: (\d+) moved, (\d+) shown", said
    )

    assert len(batches) >= 3
    assert all(debits == credited for _, debits, credited in batches)
    assert sum(rows for rows, _, _ in batches) == 4 * (transfers - rolled_back)
    assert moved == shown == sum(debits for _, debits, _ in batches)


@pytest.mark.slow
def test_05_the_largest_partition_names_its_hot_key_without_spark(tmp_path: Path) -> None:
    said = run("05", tmp_path)

    sizes = {found[0]: found[1] for found in numbers(r"partition (\d): +(\d+) rows", said)}
    ((customer, orders, rows, partition),) = numbers(
        r"customer (\d+) has (\d+) of the (\d+) rows of partition (\d)", said
    )

    assert sum(sizes.values()) == 120_000
    assert sizes[partition] == rows == max(sizes.values())
    assert customer == 4711
    assert 40_000 <= orders < rows


@pytest.mark.slow
def test_06_a_table_is_asked_about_within_a_budget_and_copies_cost_nothing(tmp_path: Path) -> None:
    said = run("06", tmp_path)

    ((done,),) = numbers(r"0.0005 dollars: spent, (\d+) mails done", said)
    assert 15 <= done < 60
    assert "1.0 dollars: finished, 60 mails done" in said
    assert "60 reviews in the table, columns id, body, label, urgency" in said
    ((answers,),) = numbers(r"invoice: (\d+) answers", said)
    assert 50 <= answers < 60, "most copies are not asked for again"


@pytest.mark.slow
def test_07_balances_follow_transfers_and_their_sum_stays_nought(tmp_path: Path) -> None:
    said = run("07", tmp_path)

    shown = numbers(r"(\d+) accounts, (\d+) moves, their sum is (\d+)", said)
    assert shown == [(100, 4000, 0), (100, 8000, 0), (100, 12000, 0)]
