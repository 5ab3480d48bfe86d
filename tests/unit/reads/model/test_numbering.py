"""Dense numbers for sparse ones."""

from __future__ import annotations

import numpy as np

from millrace.reads.model.numbering import UNKNOWN, Numbering, PairNumbering


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_values_are_numbered_in_the_order_in_which_they_first_appear() -> None:
    numbering = Numbering()

    assert numbering.number(ints(50, 7, 50, 9)).tolist() == [0, 1, 0, 2]
    assert numbering.number(ints(9, 1, 7)).tolist() == [2, 3, 1]
    assert numbering.values.tolist() == [50, 7, 9, 1]


def test_values_without_a_number_are_unknown_and_stay_so() -> None:
    numbering = Numbering()

    assert numbering.find(ints(1, 1)).tolist() == [UNKNOWN, UNKNOWN]
    numbering.number(ints(5))
    assert numbering.find(ints(4, 4)).tolist() == [UNKNOWN, UNKNOWN]
    assert numbering.find(ints(4, 5, 6)).tolist() == [UNKNOWN, 0, UNKNOWN]
    assert len(numbering) == 1


def test_no_values_have_no_numbers() -> None:
    numbering = Numbering()
    assert numbering.number(ints()).tolist() == []
    numbering.number(ints(5))
    assert numbering.number(ints()).tolist() == []


def test_pairs_are_told_apart_by_both_parts() -> None:
    numbering = PairNumbering()

    assert numbering.number(ints(1, 2, 1, 1), ints(8, 8, 9, 8)).tolist() == [0, 1, 2, 0]
    assert numbering.firsts.tolist() == [1, 2, 1]
    assert numbering.producers.tolist() == [8, 8, 9]
    firsts, producers = numbering.parts(ints(2, 1))
    assert (firsts.tolist(), producers.tolist()) == ([1, 2], [9, 8])
    assert len(numbering) == 3
