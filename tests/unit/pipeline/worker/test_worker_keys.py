"""Keys as functions get them: what is asked again has the same key, everything else another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.pipeline.worker.worker_kit import (
    JOB,
    Bench,
    dead,
    fill,
    hop,
    map_step,
    output,
)

from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.job_model import Map
from millrace.pipeline.define.context import Context

Row = dict[str, Any]


def keyed(name: str = "f", identity: str = "1", **options: Any) -> Map:  # noqa: ANN401
    """A step that gives its keys away, and fails at row 3 the first time."""
    seen: list[str] = []

    def look(row: Row, context: Context) -> Row:
        seen.append(context.key)
        if row["x"] == options.get("raises"):
            raise ValueError("no")
        return row

    given = {key: value for key, value in options.items() if key != "raises"}
    step = map_step(name, look, context=True, expensive=True, batch_rows=2, retries=0, **given)
    look.seen = seen  # type: ignore[attr-defined]
    return replace(step, calling=replace(step.calling, identity=identity))


def keys(
    folder: Path, step: Map, job_id: str = "one", broker: MemoryBroker | None = None
) -> list[str]:
    bench = Bench(folder, [hop(step)], job_id=job_id, broker=broker or MemoryBroker())
    if broker is None:
        fill(bench.broker, [7, 7, 8, 9])
    bench.run()
    return step.calling.function.seen  # type: ignore[attr-defined, no-any-return]


def test_a_row_that_failed_has_the_same_key_in_the_next_run(tmp_path: Path) -> None:
    broker = MemoryBroker()
    fill(broker, [7, 7, 8, 9])

    first = keys(tmp_path, keyed(raises=8), broker=broker)
    broker.fence(f"jobs/{JOB}/run")
    second = keys(tmp_path, keyed(), broker=broker)

    assert output(broker, "f") == [7, 7, 8, 9]
    assert len(set(first)) == 3, "two equal rows are two rows"
    assert second[0] == first[-1]
    assert len({*first, *second}) == 4


def test_no_key_of_another_job_step_or_function_is_the_same(tmp_path: Path) -> None:
    one = keys(tmp_path, keyed())

    assert keys(tmp_path, keyed()) == one, "nothing but what is asked for is in a key"
    others = [
        keys(tmp_path, keyed(), job_id="begun again"),
        keys(tmp_path, keyed(name="g")),
        keys(tmp_path, keyed(identity="2")),
    ]
    assert len({*one, *(key for other in others for key in other)}) == 16


def test_a_dead_letter_has_the_key_that_the_call_had(tmp_path: Path) -> None:
    broker = MemoryBroker()
    fill(broker, [7, 7, 8, 9])

    called = keys(tmp_path, keyed(raises=7, on_error="dead_letter"), broker=broker)

    assert [letter["key"] for letter in dead(broker, "f")] == called[:2]
