"""How many examples, seeds and slow cases are tried: all that a test's author chose, or a share.

`scripts/test` sets `MILLRACE_TEST_EXAMPLES` to a share; all are tried where nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import pytest

TPC_SCALE: Final = float(os.environ.get("MILLRACE_TEST_SCALE", "0.1"))
"""The scale of the slow tests of TPC-DS; at 1 all queries of TPC-H run at that scale too."""
T = TypeVar("T")
_SHARE = float(os.environ.get("MILLRACE_TEST_EXAMPLES", "1"))


def examples(count: int) -> int:
    """So many, or the share of them that is asked for, but some."""
    return max(10, round(count * _SHARE))


def seeds(count: int, first: int = 0) -> range:
    """So many seeds, or the share of them that is asked for, but two."""
    return range(first, first + max(2, round(count * _SHARE)))


def some(cases: Sequence[T]) -> list[T]:
    """The cases, or the share of them that is asked for, from the first to the last."""
    count = max(2, min(len(cases), round(len(cases) * _SHARE)))
    return [cases[number * len(cases) // count] for number in range(count)]


def share_of(cases: Sequence[T]) -> list[T]:
    """The share of the cases that is asked for, spread over all of them, but one."""
    count = max(1, round(len(cases) * _SHARE))
    return [cases[number * len(cases) // count] for number in range(count)]


def few_quick(cases: Iterable[object], count: int) -> list[object]:
    """The cases as parameters: so many, from the first to the last, are quick, the others slow."""
    listed = list(cases)
    quick = {number * len(listed) // count for number in range(count)}
    return [
        case if number in quick else pytest.param(case, marks=pytest.mark.slow)
        for number, case in enumerate(listed)
    ]
