"""Numberings do what a dict does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples

from millrace.reads.model.numbering import UNKNOWN, Numbering, PairNumbering

VALUE = st.one_of(st.integers(0, 9), st.integers(0, 2**63 - 1))
CALLS = st.lists(st.tuples(st.booleans(), st.lists(VALUE, max_size=12)), max_size=12)
PAIRS = st.lists(st.lists(st.tuples(VALUE, VALUE), max_size=12), max_size=12)


@settings(max_examples=examples(120), deadline=None)
@given(CALLS)
def test_a_numbering_is_a_dict(calls: list[tuple[bool, list[int]]]) -> None:
    numbering, model = Numbering(), dict[int, int]()
    for gives, values in calls:
        array = np.array(values, np.int64)
        if gives:
            expected = [model.setdefault(value, len(model)) for value in values]
            assert numbering.number(array).tolist() == expected
        else:
            expected = [model.get(value, UNKNOWN) for value in values]
            assert numbering.find(array).tolist() == expected
        assert numbering.values.tolist() == list(model)


@settings(max_examples=examples(120), deadline=None)
@given(PAIRS)
def test_a_numbering_of_pairs_is_a_dict_of_pairs(calls: list[list[tuple[int, int]]]) -> None:
    numbering, model = PairNumbering(), dict[tuple[int, int], int]()
    for pairs in calls:
        expected = [model.setdefault(pair, len(model)) for pair in pairs]
        firsts = np.array([first for first, _ in pairs], np.int64)
        producers = np.array([second for _, second in pairs], np.int64)
        assert numbering.number(firsts, producers).tolist() == expected
        found = zip(numbering.firsts.tolist(), numbering.producers.tolist(), strict=True)
        assert list(found) == list(model)
        assert len(numbering) == len(model)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(VALUE, VALUE, st.integers(1, 60)), min_size=1, max_size=12))
def test_pairs_that_stand_together_are_numbered_alike(runs: list[tuple[int, int, int]]) -> None:
    pairs = [(first, producer) for first, producer, length in runs for _ in range(length)]
    model = dict[tuple[int, int], int]()
    expected = [model.setdefault(pair, len(model)) for pair in pairs]

    firsts = np.array([first for first, _ in pairs], np.int64)
    producers = np.array([second for _, second in pairs], np.int64)

    assert PairNumbering().number(firsts, producers).tolist() == expected
