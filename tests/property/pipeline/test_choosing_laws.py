"""Whatever the steps and wherever rows wait, workers that follow the ranking come to an end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.pipeline.worker.worker_kit import NUMBERS, hop, map_step

from millrace.pipeline.core.hops import Hop, Unit
from millrace.pipeline.core.job_model import ParquetSink
from millrace.pipeline.core.unit_choice import FlowLimits, Steps, UnitState, rank

LIMITS = FlowLimits(backlog_rows_max=10, sink_bytes=1_000_000, sink_ms=1_000_000_000)


@st.composite
def graphs(draw: st.DrawFn) -> list[Hop]:
    """Any graph of steps and sinks without a circle."""
    count = draw(st.integers(1, 6))
    feeds: list[set[int]] = [set() for _ in range(count)]
    depths = [1] * count
    for reader in range(1, count):
        for giver in draw(st.sets(st.integers(0, reader - 1), max_size=3)):
            feeds[giver].add(reader)
            depths[reader] = max(depths[reader], depths[giver] + 1)
    hops = []
    for number in range(count):
        name, fed = f"s{number}", [f"s{reader}" for reader in sorted(feeds[number])]
        if not fed and draw(st.booleans()):
            sink = ParquetSink(name=name, schema=NUMBERS, path="/nowhere")
            hops.append(hop(sink=sink, depth=depths[number]))
        else:
            workers = draw(st.sampled_from([None, 1, 2]))
            one = map_step(name, dict, workers=workers)
            hops.append(hop(one, depth=depths[number], feeds=fed))
    return hops


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Hop], dict[Unit, int]]:
    hops = draw(graphs())
    rows = {
        Unit(one.name, str(journal)): draw(st.integers(0, 25))
        for one in hops
        for journal in range(draw(st.integers(1, 3)))
    }
    return hops, rows


@given(situations())
@settings(max_examples=examples(300), deadline=None)
def test_something_is_chosen_whenever_rows_wait_and_nobody_works(
    situation: tuple[list[Hop], dict[Unit, int]],
) -> None:
    hops, rows = situation
    places = [UnitState(unit=unit, rows=count) for unit, count in rows.items()]

    found = rank(Steps.of(hops), places, LIMITS)

    assert bool(found) == any(rows.values())
    assert all(rows[unit] for unit in found)


@given(situations(), st.integers(1, 3), st.randoms(use_true_random=False))
@settings(max_examples=examples(150), deadline=None)
def test_rows_flow_until_none_are_left(
    situation: tuple[list[Hop], dict[Unit, int]], slots: int, random: object
) -> None:
    hops, rows = situation
    steps = Steps.of(hops)
    choose = random.choice  # type: ignore[attr-defined]
    working: list[Unit] = []
    budget = 10_000
    while any(rows.values()) or working:
        budget -= 1
        assert budget, "rows do not come to an end"
        places = [
            UnitState(unit=unit, rows=count, is_leased=unit in working)
            for unit, count in rows.items()
        ]
        found = rank(steps, places, LIMITS)
        if found and len(working) < slots:
            working.append(found[0])
            continue
        assert working, "rows wait, and nobody works"
        unit = working.pop(working.index(choose(working)))
        done, rows[unit] = min(rows[unit], 7), max(0, rows[unit] - 7)
        for fed in steps.hops[unit.hop].feeds:
            to = choose([each for each in rows if each.hop == fed])
            rows[to] += done
