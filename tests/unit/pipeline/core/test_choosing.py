"""Which unit a worker takes next."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.pipeline.worker.worker_kit import NUMBERS, hop, map_step

from millrace.pipeline.core.hops import Hop, Unit
from millrace.pipeline.core.job_model import ParquetSink
from millrace.pipeline.core.unit_choice import FlowLimits, Steps, UnitState, pushed_back, rank

LIMITS = FlowLimits(backlog_rows_max=100, sink_bytes=1000, sink_ms=500)


def step(name: str, depth: int, *feeds: str, workers: int | None = None) -> Hop:
    return hop(map_step(name, dict, workers=workers), depth=depth, feeds=feeds)


def sink(name: str, depth: int) -> Hop:
    return hop(sink=ParquetSink(name=name, schema=NUMBERS, path="/nowhere"), depth=depth)


def place(
    name: str, rows: int, journal: str = "0", *, held: bool = False, ms: int = 0
) -> UnitState:
    return UnitState(unit=Unit(name, journal), rows=rows, is_leased=held, waited_ms=ms)


def chosen(
    hops: list[Hop], *places: UnitState, warm: str | None = None, each: float = 0
) -> list[str]:
    sizes = {one.name: each for one in hops} if each else {}
    found = rank(Steps.of(hops), places, LIMITS, warm=warm, row_bytes=sizes)
    return [f"{unit.hop}{unit.journal}" for unit in found]


LINE = [step("a", 1, "b"), step("b", 2, "c"), step("c", 3)]


def test_steps_near_the_end_come_first_and_then_those_with_most_rows() -> None:
    found = chosen(LINE, place("a", 90), place("a", 95, "1"), place("b", 1), place("c", 0))

    assert found == ["b0", "a1", "a0"]


def test_units_that_somebody_holds_are_left_to_them() -> None:
    assert chosen(LINE, place("a", 5), place("b", 5, held=True)) == ["a0"]


def test_a_step_is_pushed_back_while_too_many_rows_wait_behind_it() -> None:
    assert chosen(LINE, place("a", 5), place("b", 60), place("b", 40, "1")) == ["b0", "b1"]
    assert chosen(LINE, place("a", 5), place("b", 60), place("b", 39, "1"))[-1] == "a0"


def test_a_step_without_rows_is_not_said_to_be_pushed_back() -> None:
    full = [place("b", 100), place("c", 0)]

    assert pushed_back(Steps.of(LINE), [place("a", 5), *full], LIMITS) == {"a"}
    assert pushed_back(Steps.of(LINE), [place("a", 0), *full], LIMITS) == set()
    assert pushed_back(Steps.of(LINE), [place("a", 5), place("b", 99)], LIMITS) == set()


def test_one_reader_that_is_behind_pushes_a_step_back() -> None:
    fork = [step("a", 1, "b", "c"), step("b", 2), step("c", 2)]

    assert chosen(fork, place("a", 5), place("b", 0), place("c", 100)) == ["c0"]


def test_a_step_gets_no_more_workers_than_it_wants() -> None:
    one = [step("a", 1, workers=1)]

    assert chosen(one, place("a", 5), place("a", 5, "1", held=True)) == []
    assert chosen(one, place("a", 5), place("a", 5, "1")) == ["a0", "a1"]


def test_a_worker_stays_with_the_step_whose_callable_it_has_made() -> None:
    assert chosen(LINE, place("a", 5), place("b", 5), warm="a") == ["a0", "b0"]


def test_a_sink_of_files_waits_until_there_is_enough_for_one() -> None:
    hops = [step("a", 1, "s"), sink("s", 2)]

    assert chosen(hops, place("a", 5), place("s", 50)) == ["a0"]
    assert chosen(hops, place("a", 5), place("s", 50), each=20.0) == ["s0", "a0"]
    assert chosen(hops, place("a", 5), place("s", 50, ms=500)) == ["s0", "a0"]


def test_a_sink_of_files_waits_no_longer_when_nothing_more_comes() -> None:
    hops = [step("a", 1, "b"), step("b", 2, "s"), sink("s", 3)]

    assert chosen(hops, place("a", 0), place("b", 0), place("s", 1)) == ["s0"]
    assert chosen(hops, place("a", 0, held=True), place("b", 0), place("s", 1)) == []
    assert chosen(hops, place("a", 7), place("b", 0), place("s", 1)) == ["a0"]


def test_units_set_aside_are_not_chosen_and_hold_no_sink_up() -> None:
    hops = [step("a", 1, "s"), sink("s", 2)]
    places = [place("a", 5), place("s", 1)]

    found = rank(Steps.of(hops), places, LIMITS, aside=[Unit("a", "0")])

    assert found == [Unit("s", "0")]


def test_sinks_that_wait_for_rows_never_push_others_back_for_good() -> None:
    hops = [step("a", 1, "s"), replace(sink("s", 2), inputs=("x",))]
    many = [place("s", 25, str(n)) for n in range(4)]

    assert chosen(hops, place("a", 5), *many)[:4] == ["s0", "s1", "s2", "s3"]
