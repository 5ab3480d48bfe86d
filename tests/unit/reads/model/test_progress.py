"""What a slice reports."""

from __future__ import annotations

import numpy as np

from millrace.reads.model.checkpoint import RolledBack
from millrace.reads.model.slice_progress import (
    Hints,
    Opens,
    Points,
    Reads,
    SliceProgress,
    collapse,
    run_starts,
)

A, B, P, Q = 1, 2, 10, 20


def collapsed(*points: tuple[int, int, int, int], hinted: tuple[int, ...] = ()) -> object:
    mask = np.array([clock in hinted for _, _, clock, _ in points], np.bool_)
    given = Points.of([*points])
    return collapse(given, run_starts(given, mask)).rows()


def test_a_run_of_commits_without_hints_is_one_point() -> None:
    assert collapsed((A, P, 10, 1), (A, P, 20, 4), (A, P, 30, 6)) == [(A, P, 30, 1)]
    assert collapsed() == []


def test_a_commit_with_hints_stands_alone() -> None:
    points = [(A, P, clock, clock + 1) for clock in (10, 20, 30, 40, 50)]

    assert collapsed(*points, hinted=(30,)) == [(A, P, 20, 11), (A, P, 30, 31), (A, P, 50, 41)]
    assert collapsed(*points, hinted=(10, 20, 50)) == [
        (A, P, 10, 11),
        (A, P, 20, 21),
        (A, P, 40, 31),
        (A, P, 50, 51),
    ]


def test_runs_of_others_are_others() -> None:
    points = [(A, P, 10, 1), (A, Q, 20, 4), (B, Q, 30, 6), (B, Q, 40, 7)]

    assert collapsed(*points) == [(A, P, 10, 1), (A, Q, 20, 4), (B, Q, 40, 6)]


def test_a_report_travels_as_bytes() -> None:
    given = SliceProgress(
        points=Points.of([(A, P, 2**64 - 1, 1)]),
        hints=Hints.of([(A, P, 2**64 - 1, B)]),
        opens=Opens.of([(A, Q, -1)]),
        rolled_back=RolledBack.of([(A, P, 3, 5, 18)]),
        reads=Reads.of([(A, 9), (B, 0)]),
    )

    found = SliceProgress.from_bytes(given.to_bytes())

    for name in ("points", "hints", "opens", "rolled_back", "reads"):
        assert getattr(found, name).rows() == getattr(given, name).rows(), name
    assert SliceProgress.from_bytes(SliceProgress().to_bytes()).points.rows() == []
