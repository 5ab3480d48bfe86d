"""Engines: rows go in while others are in it, and come out when they are finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    Bench,
    dead,
    fill,
    hop,
    map_step,
    output,
    totals,
)

from millrace.pipeline.calling import function_instances
from millrace.pipeline.core import hops
from millrace.pipeline.paid.limits_and_budget import Limits

Row = dict[str, Any]
SLOTS = 4


@pytest.fixture(autouse=True)
def _fresh_instances() -> Iterator[None]:
    yield
    function_instances.free_all()


class Engine:
    """Gives one result a poll, the newest row first, and notes how full it was."""

    fullness: ClassVar[list[int]] = []
    aborted: ClassVar[list[int]] = []

    def __init__(self, result: Callable[[Row], object]) -> None:
        self._result = result
        self._rows: dict[str, Row] = {}

    def submit(self, key: str, row: Row) -> None:
        if row["x"] == -1:
            raise ValueError("no such row")
        assert key not in self._rows
        self._rows[key] = row

    def poll(self) -> list[tuple[str, object]]:
        type(self).fullness.append(len(self._rows))
        wanted = [key for key, row in self._rows.items() if row["x"] != STUCK]
        if not wanted:
            return []
        return [(wanted[-1], self._result(self._rows.pop(wanted[-1])))]

    def abort(self, key: str) -> None:
        type(self).aborted.append(self._rows.pop(key)["x"])


STUCK = 1000


def doubled(row: Row) -> object:
    return {"x": 2 * row["x"]}


def bench(
    folder: Path,
    result: Callable[[Row], object],
    values: list[int],
    **options: Any,  # noqa: ANN401 - of any option
) -> Bench:
    Engine.fullness.clear()
    Engine.aborted.clear()
    given = {"expensive": True, "concurrency": SLOTS, "retries": 0, **options}
    made = Bench(folder, [hop(map_step("ask", partial(Engine, result), engine=True, **given))])
    fill(made.broker, values)
    return made


def test_an_engine_is_kept_full_and_its_rows_come_out_in_their_order(tmp_path: Path) -> None:
    made = bench(tmp_path, doubled, list(range(40)))

    made.run()

    assert output(made.broker, "ask") == [2 * value for value in range(40)]
    assert totals(made.broker, "ask").calls == 40
    assert Engine.fullness.count(SLOTS) > 20
    assert max(Engine.fullness) == SLOTS


def test_a_row_may_become_none_or_many(tmp_path: Path) -> None:
    def several(row: Row) -> object:
        return [{"x": row["x"]}] * (row["x"] % 3) or None

    made = bench(tmp_path, several, list(range(9)))

    made.run()

    assert output(made.broker, "ask") == [1, 2, 2, 4, 5, 5, 7, 8, 8]


def test_an_exception_among_the_results_is_that_of_its_row(tmp_path: Path) -> None:
    def some(row: Row) -> object:
        return ValueError("odd") if row["x"] % 2 else doubled(row)

    made = bench(tmp_path, some, [0, 1, 2, 3, -1], on_error="dead_letter")

    made.run()

    assert output(made.broker, "ask") == [0, 4]
    assert sorted(letter["row"]["x"] for letter in dead(made.broker, "ask")) == [-1, 1, 3]


def test_a_poll_that_raises_fails_the_rows_that_are_in_the_engine(tmp_path: Path) -> None:
    broken = [True]

    def once(row: Row) -> object:
        if row["x"] == 5 and broken:
            broken.clear()
            raise RuntimeError("out of memory")
        return doubled(row)

    made = bench(tmp_path, once, list(range(12)), retries=2)

    made.run()

    found = totals(made.broker, "ask")
    assert sorted(output(made.broker, "ask")) == [2 * value for value in range(12)]
    assert 1 <= found.errors <= SLOTS
    assert found.calls == 12 + found.errors


def test_a_key_that_was_never_submitted_is_named(tmp_path: Path) -> None:
    def unknown(row: Row) -> object:
        return doubled(row)

    class Wrong(Engine):
        def poll(self) -> list[tuple[str, object]]:
            return [("strange", {"x": 1})]

    step = map_step(
        "ask", partial(Wrong, unknown), engine=True, expensive=True, on_error="dead_letter"
    )
    made = Bench(tmp_path, [hop(step)])
    fill(made.broker, [1])

    made.run()

    (letter,) = dead(made.broker, "ask")
    assert ".poll gave a result for 'strange'" in letter["error"]


def test_a_row_that_takes_too_long_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    values = [STUCK, *range(20)]
    made = bench(tmp_path, doubled, values, timeout=0.05, on_error="dead_letter", ordered=False)

    made.run()

    assert sorted(output(made.broker, "ask")) == [2 * value for value in range(20)]
    assert Engine.aborted == [STUCK]
    assert "did not finish the row in 0.05 s" in dead(made.broker, "ask")[0]["error"]


def test_an_engine_waits_for_limits_without_being_polled_empty(tmp_path: Path) -> None:
    made = bench(tmp_path, doubled, list(range(6)), limits=Limits(rpm=1200))

    made.run()

    assert output(made.broker, "ask") == [0, 2, 4, 6, 8, 10]
    assert 0 not in Engine.fullness


def test_two_steps_that_were_given_the_same_engine_share_it(tmp_path: Path) -> None:
    made_count: list[int] = []

    class Counted(Engine):
        def __init__(self) -> None:
            made_count.append(1)
            super().__init__(doubled)

    def step(name: str) -> Any:  # noqa: ANN401 - a step
        one = map_step(name, Counted, engine=True, expensive=True, concurrency=SLOTS)
        return replace(one, calling=replace(one.calling, shared="first"))

    first = hop(step("first"), feeds=["second"])
    second = hop(step("second"), inputs=[hops.output_prefix(JOB, "first")], depth=2)
    made = Bench(tmp_path, [first, second])
    fill(made.broker, range(10))

    made.run()

    assert output(made.broker, "second") == [4 * value for value in range(10)]
    assert sum(made_count) == 1
