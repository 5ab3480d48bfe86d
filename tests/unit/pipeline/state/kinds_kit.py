"""A job for each step with state, its rows, and what is compared of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.pipeline.state.state_kit import (
    came_out,
    folded,
    graph_hops,
    net_of,
    state_rows,
)
from tests.unit.pipeline.worker.worker_kit import Bench

from millrace.pipeline.core.hops import Hop
from millrace.pipeline.define.steps import Step

ROWS = 600
EVENTS = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
PAID = EVENTS.set(1, pa.field("paid_at", EVENTS.field("ts").type)).set(
    2, pa.field("paid", pa.int64())
)


def events(seed: int = 1, schema: pa.Schema = EVENTS) -> pa.Table:
    """A row each 10 seconds, disordered by up to two minutes."""
    chance = np.random.default_rng(seed)
    seconds = np.arange(ROWS) * 10 + chance.integers(0, 120, ROWS)
    times = pa.array(seconds * 1_000_000, pa.int64()).cast(EVENTS.field("ts").type)
    return pa.table(
        [chance.integers(0, 40, ROWS), times, chance.integers(0, 100, ROWS)], schema=schema
    )


def running(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The running sum of each key."""
    so_far = dict(zip(states["id"].to_pylist(), states["sum"].to_pylist(), strict=True))
    out = []
    for row in rows.to_pylist():
        so_far[row["id"]] = so_far.get(row["id"], 0) + row["v"]
        out.append(so_far[row["id"]])
    after = {"id": [*so_far.keys()], "sum": [*so_far.values()]}
    return (
        rows.select(["id"]).append_column("sum", pa.array(out, pa.int64())),
        pa.table(after, schema=states.schema),
    )


def _totals(steps: list[Step]) -> Step:
    return steps[0].key_by("id", partitions=2).aggregate("out", n="count(*)", total="sum(v)")


def _forgotten(steps: list[Step]) -> Step:
    """With a limit of time that never runs out here."""
    by_id = steps[0].key_by("id", partitions=2)
    return by_id.aggregate("out", ttl="9d", n="count(*)", total="sum(v)")


def _latest(steps: list[Step]) -> Step:
    return steps[0].key_by("id", partitions=2).latest("out")


def _once(steps: list[Step]) -> Step:
    return steps[0].key_by("id", partitions=2).dedupe("out", within="20 minutes")


def _function(steps: list[Step]) -> Step:
    return (
        steps[0]
        .key_by("id", partitions=2)
        .stateful("out", running, state="sum bigint", schema="id bigint, sum bigint", version="1")
    )


def _windows(steps: list[Step]) -> Step:
    return (
        steps[0]
        .key_by("id", partitions=2)
        .window("out", sliding=("10 minutes", "5 minutes"), late="1 minute", n="count(*)")
    )


def _closed(steps: list[Step]) -> Step:
    return (
        steps[0]
        .key_by("id", partitions=2)
        .window("out", tumbling="5 minutes", late="1 minute", emit="close", n="count(*)")
    )


def _sessions(steps: list[Step]) -> Step:
    by_id = steps[0].key_by("id", partitions=2)
    return by_id.window("out", session="3 minutes", late="1 minute", n="count(*)", v="sum(v)")


def _pairs(steps: list[Step]) -> Step:
    left, right = steps
    return left.key_by("id", partitions=2).join(
        "out", right.key_by("id"), within="20 minutes", late="1 minute"
    )


def _looked_up(steps: list[Step]) -> Step:
    """Its table is complete before rows look anything up."""
    return steps[0].lookup("out", steps[1].key_by("id", partitions=2), on="id")


def _last_values(step: Step, part: str = "v % 7") -> Step:
    """The last row of each key, each with its predecessor in front, by a value that changes."""
    last = step.key_by("id", partitions=2).latest(f"last_{step.name}", emit="retractions")
    return last.select("_mr_op", "id", f"{part} AS part", "v")


def _totals_of_changes(steps: list[Step]) -> Step:
    last = _last_values(steps[0], "id * 2 + v % 2").key_by("part", partitions=2)
    return last.aggregate("out", n="count(*)", mean="avg(v)")


def _pairs_of_changes(steps: list[Step]) -> Step:
    left = _last_values(steps[0]).key_by("part", partitions=2)
    right = steps[1].select("id AS rid", "paid % 7 AS rpart").filter("rid < 5")
    return left.join("out", right.key_by("rpart", name="by_rpart"))


@dataclass(frozen=True)
class Kind:
    """A job, and over how many journals each source is spread."""

    define: Callable[[list[Step]], Step]
    journals: int = 1
    keys: tuple[str, ...] = ()
    """Those of changes; without them each row that comes out counts."""
    sides: int = 1

    def hops(self) -> list[Hop]:
        schemas = {"src": EVENTS, "other": PAID}
        return graph_hops(dict([*schemas.items()][: self.sides]), self.define)

    def rows(self) -> dict[str, tuple[pa.Table, int]]:
        tables = {"src": events(), "other": events(2, PAID)}
        return {name: (tables[name], self.journals) for name in [*tables][: self.sides]}

    def result(self, made: Bench) -> tuple[Any, Any]:
        """What came out, and the state: equal for runs that have to be."""
        out = came_out(made.broker, "out")
        rows = folded(out, self.keys) if self.keys else net_of(out)
        return rows, Counter(map(str, state_rows(made, "out")))


KINDS = {
    "aggregate": Kind(_totals, journals=2, keys=("id",)),
    "aggregate with ttl": Kind(_forgotten, journals=2, keys=("id",)),
    "latest": Kind(_latest, keys=("id",)),
    "dedupe": Kind(_once),
    "stateful": Kind(_function),
    "window": Kind(_windows, journals=2, keys=("id", "window_start")),
    "window at close": Kind(_closed, journals=1),
    "session": Kind(_sessions, journals=2, keys=("id", "window_start")),
    "join": Kind(_pairs, journals=2, sides=2),
    "lookup": Kind(_looked_up, journals=1, sides=2),
    "aggregate over changes": Kind(_totals_of_changes, keys=("part",)),
    "join over changes": Kind(_pairs_of_changes, sides=2),
}
