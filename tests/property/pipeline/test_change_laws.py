"""A job that is rewritten again and again between runs, with restarts, still has its rows once.

Rows carry a trail of the steps they went through and of these steps' versions. What stands for
workers writes it, and what a reset takes back is taken back from the sinks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.pipeline.define.written_kit import VIDEOS, Written, same

from millrace.config import Config
from millrace.errors import JobChanged
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.hops import Hop, output_journal, run_lease
from millrace.pipeline.core.job_events import JobEventKind
from millrace.pipeline.core.job_model import Map, OnChange, Select
from millrace.pipeline.define.job import Job
from millrace.pipeline.define.steps import Step
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_journals import journals_of
from millrace.pipeline.run.job_runtime import RunContext
from millrace.pipeline.run.run_start import begin
from millrace.spark.spark_job_runtime import SparkIntake
from millrace.transport.owner.owner_endpoint import JournalAddress

ORDERS = "acme/orders"
Kind = Literal["cheap", "durable", "expensive"]
SINKS = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Text:
    """How the job is written for one run."""

    sinks: frozenset[str]
    first: Kind
    second: Kind
    versions: tuple[int, int, int]
    rows: int
    """How many rows come in before the run."""


TEXTS = st.builds(
    Text,
    sinks=st.frozensets(st.sampled_from(SINKS), min_size=1),
    first=st.sampled_from(["cheap", "durable", "expensive"]),
    second=st.sampled_from(["cheap", "durable", "expensive"]),
    versions=st.tuples(*[st.integers(0, 1)] * 3),
    rows=st.integers(0, 2),
)


def write(text: Text, orders: Step) -> dict[str, list[str]]:
    """Write the job down; for each sink the trails of an order's rows.

    a reads the first step, b the columns chosen from it, c the second step behind these, and d the
    first step's rows together with the chosen ones.
    """
    first, chosen, second = text.versions
    one = _mapped(orders, "one", text.first, first)
    trails = {"a": [f">one{first}"]}
    if "a" in text.sinks:
        one.sink_parquet("/nowhere/a", name="a")
    if text.sinks & {"b", "c", "d"}:
        two = one.select("id", "url", f"score + {chosen} AS score", name="two")
        trails["b"] = [f">one{first}>two{chosen}"]
        if "b" in text.sinks:
            two.sink_parquet("/nowhere/b", name="b")
        if "c" in text.sinks:
            three = _mapped(two, "three", text.second, second)
            three.sink_parquet("/nowhere/c", name="c")
            trails["c"] = [f">one{first}>two{chosen}>three{second}"]
        if "d" in text.sinks:
            one.union(two, name="both").sink_parquet("/nowhere/d", name="d")
            trails["d"] = [*trails["a"], *trails["b"]]
    return {name: trails[name] for name in sorted(text.sinks)}


def _mapped(step: Step, name: str, kind: Kind, version: int) -> Step:
    return step.map(
        name,
        same,
        schema=VIDEOS,
        version=str(version),
        expensive=kind == "expensive",
        durable=True if kind == "durable" else None,
        partitions=1 if kind != "cheap" else None,
    )


@dataclass
class World:
    """A broker with orders, and what lies in each sink: an order's id and the row's trail."""

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    sinks: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    orders: int = 0

    def __post_init__(self) -> None:
        self.broker.create(ORDERS, VIDEOS)

    def add(self, count: int) -> None:
        ids = range(self.orders, self.orders + count)
        columns = {"id": ids, "url": [""] * count, "score": [0.5] * count}
        if count:
            self.broker.append(ORDERS, pa.table(columns, schema=VIDEOS))
        self.orders += count

    def run(self, text: Text, on_change: OnChange) -> dict[str, list[str]]:
        """Run the job to its end; the trails that each of its sinks should have for an order."""
        job = Job("job", Written(known={ORDERS: VIDEOS}))
        trails = write(text, job.source("orders", journal=ORDERS))
        history = RunHistory.begin(self.broker, job.name)
        seen = len(history.events)
        lease = self.broker.acquire(run_lease(job.name), "a test")
        taking = RunContext(
            broker=self.broker,
            where=JournalAddress(token="", workspace_id="mill"),
            history=history,
            lease=lease,
            config=Config(),
            check=lambda: None,
        )
        try:
            begin(job, job._graph.hops, taking, SparkIntake(), on_change, "UTC")
        finally:
            self.broker.release(lease)
        for event in history.events[seen:]:
            if event.happened is JobEventKind.RESET:
                for name in event.detail["parts"]:
                    self.sinks.pop(name, None)
        for hop in job._graph.hops:
            self._work(hop)
        return trails

    def _work(self, hop: Hop) -> None:
        for journal in journals_of(self.broker, hop):
            offset = self.broker.committed(hop.group, journal.name)
            assert offset is not None
            found = self.broker.read(journal.name, offset)
            if found.next_offset == offset:
                continue
            rows = found.rows().to_pylist()
            for row in rows:
                row["url"] += "".join(_tag(step) for step in hop.steps)
            with self.broker.transaction() as t:
                if hop.sink is None:
                    out = pa.Table.from_pylist(rows, schema=VIDEOS)
                    t.append(output_journal(hop.job, hop.name, 0), out)
                t.commit(hop.group, journal.name, found.next_offset, expected=offset)
            if hop.sink is not None:
                self.sinks.setdefault(hop.name, []).extend((r["id"], r["url"]) for r in rows)


def _tag(step: object) -> str:
    match step:
        case Map():
            return f">{step.name}{step.options.version}"
        case Select():
            return f">{step.name}{re.findall(r'[0-9]+', step.columns[-1])[0]}"
        case _:
            return ""


@pytest.fixture(autouse=True, scope="module")
def _no_files() -> Any:  # noqa: ANN401 - a generator
    """Sinks of files are only lists here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millrace.pipeline.run.run_start.check_sink", lambda *_: None)
        yield


LAW = settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@LAW
@given(st.lists(TEXTS, min_size=2, max_size=6))
def test_with_restarts_sinks_hold_what_the_job_as_it_is_now_makes(texts: Sequence[Text]) -> None:
    world = World()
    for text in texts:
        world.add(text.rows)
        trails = world.run(text, "restart")
        for name, expected in trails.items():
            wanted = Counter((n, trail) for n in range(world.orders) for trail in expected)
            assert Counter(world.sinks.get(name, [])) == wanted, name


@LAW
@given(st.lists(TEXTS, min_size=2, max_size=6))
def test_whatever_is_chosen_each_row_comes_out_once(texts: Sequence[Text]) -> None:
    world = World()
    for text in texts:
        world.add(text.rows)
        try:
            trails = world.run(text, "continue")
        except JobChanged:
            trails = world.run(text, "restart")
        for name, expected in trails.items():
            found = Counter(number for number, _ in world.sinks.get(name, []))
            assert found == dict.fromkeys(range(world.orders), len(expected)), name


@LAW
@given(st.lists(TEXTS, min_size=2, max_size=6))
def test_who_is_never_asked_has_never_mixed_anything(texts: Sequence[Text]) -> None:
    """Runs that are refused are left out; what is in the sinks is still of one making."""
    world = World()
    for text in texts:
        world.add(text.rows)
        try:
            trails = world.run(text, "fail")
        except JobChanged:
            continue
        for name, expected in trails.items():
            wanted = Counter((n, trail) for n in range(world.orders) for trail in expected)
            assert Counter(world.sinks.get(name, [])) == wanted, name
