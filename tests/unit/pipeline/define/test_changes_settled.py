"""Jobs that change between runs: what a run sets back, what it keeps, and what it asks about.

No worker runs here. What stands for them hands every row on, moves the offsets, and counts the rows
that reach each sink: so a row that is lost or comes again is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.pipeline.define.written_kit import VIDEOS, Written, same

from millrace.config import Config
from millrace.errors import JobChanged, UserError
from millrace.journal.memory import MemoryBroker
from millrace.pipeline.core.hops import Hop, output_journal, run_lease
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.core.job_record import RECORDED
from millrace.pipeline.define.job import Job
from millrace.pipeline.define.job_recording import kept_before
from millrace.pipeline.define.steps import Step
from millrace.pipeline.report.run_history import RunHistory
from millrace.pipeline.run.job_journals import journals_of
from millrace.pipeline.run.job_runtime import RunContext
from millrace.pipeline.run.reset import reset_step
from millrace.pipeline.run.run_start import begin, recall_kept, sink_progress
from millrace.spark.spark_job_runtime import SparkIntake
from millrace.transport.owner.owner_endpoint import JournalAddress

ORDERS = "acme/orders"


def other(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"score": 1.0}


@dataclass
class World:
    """A broker with one journal of orders, and what reached each sink."""

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    sunk: Counter[str] = field(default_factory=Counter)
    hops: list[str] = field(default_factory=list)
    """The hops of the last run."""

    def __post_init__(self) -> None:
        self.broker.create(ORDERS, VIDEOS)

    def add(self, count: int) -> None:
        columns = {"id": range(count), "url": ["u"] * count, "score": [0.5] * count}
        self.broker.append(ORDERS, pa.table(columns, schema=VIDEOS))

    def run(self, write: Callable[[Step], object], on_change: OnChange = "fail") -> Counter[str]:
        """Run a job to its end; how many rows reached each sink in this run."""
        job = Job("job", Written(known={ORDERS: VIDEOS}))
        write(job.source("orders", journal=ORDERS))
        recall_kept(self.broker, job._graph)
        lease = self.broker.acquire(run_lease(job.name), "a test")
        taking = RunContext(
            broker=self.broker,
            where=JournalAddress(token="", workspace_id="mill"),
            history=RunHistory.begin(self.broker, job.name),
            lease=lease,
            config=Config(),
            check=lambda: None,
        )
        try:
            begin(job, job._graph.hops, taking, SparkIntake(), on_change, "UTC")
        finally:
            self.broker.release(lease)
        self.hops = [hop.name for hop in job._graph.hops]
        before = Counter(self.sunk)
        for hop in job._graph.hops:
            self._work(hop)
        return self.sunk - before

    def truncate(self, step: str) -> None:
        for info in self.broker.list(f"jobs/job/{step}/out"):
            self.broker.truncate_committed(info.name)

    def _work(self, hop: Hop) -> None:
        for journal in journals_of(self.broker, hop):
            offset = self.broker.committed(hop.group, journal.name)
            assert offset is not None, "every hop is put at the start of what it reads"
            found = self.broker.read(journal.name, offset)
            if found.next_offset == offset:
                continue
            with self.broker.transaction() as t:
                if hop.sink is None:
                    t.append(output_journal(hop.job, hop.name, 0), found.rows())
                t.commit(hop.group, journal.name, found.next_offset, expected=offset)
            self.sunk[hop.name] += found.rows().num_rows if hop.sink is not None else 0


def straight(function: Callable[..., Any] = same) -> Callable[[Step], object]:
    """Paid calls, and one sink."""
    return lambda orders: orders.map("call", function, schema=VIDEOS, expensive=True).sink(
        "a", same
    )


def branches(
    *names: str,
    function: Callable[..., Any] = same,
    **options: Any,  # noqa: ANN401 - of `map`
) -> Callable[[Step], object]:
    """A step with some sinks behind it."""

    def write(orders: Step) -> None:
        made = orders.map("made", function, schema=VIDEOS, **options)
        for name in names:
            made.sink_parquet(f"/nowhere/{name}", name=name)

    return write


def in_front(**options: Any) -> Callable[[Step], object]:  # noqa: ANN401 - of `map`
    """A cheap step in front of paid calls."""

    def write(orders: Step) -> None:
        made = orders.map("made", same, schema=VIDEOS, **options)
        made.map("call", same, schema=VIDEOS, expensive=True).sink("a", same)

    return write


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks of files are only counted here."""
    monkeypatch.setattr("millrace.pipeline.run.run_start.check_sink", lambda *_: None)
    monkeypatch.setattr("millrace.pipeline.run.reset.clear_sink", lambda *_: None)


@pytest.fixture
def world() -> World:
    made = World()
    made.add(5)
    return made


def test_a_job_that_is_the_same_does_each_row_once(world: World) -> None:
    assert world.run(straight()) == {"a": 5}
    assert world.run(straight()) == {}
    world.add(2)
    assert world.run(straight()) == {"a": 2}


def test_a_changed_step_is_asked_about_and_nothing_is_recorded(world: World) -> None:
    world.run(straight())
    world.add(2)

    for _ in range(2):
        with pytest.raises(
            JobChanged, match=r"step 'call' changed: its function(.|\n)*5 rows done"
        ):
            world.run(straight(other))
    assert world.run(straight()) == {"a": 2}


def test_to_continue_keeps_what_is_done(world: World) -> None:
    world.run(straight())
    world.add(2)

    assert world.run(straight(other), "continue") == {"a": 2}
    assert world.run(straight(other)) == {}
    with pytest.raises(JobChanged):
        world.run(straight())


def test_to_restart_does_all_behind_the_change_again(world: World) -> None:
    world.run(straight())
    world.add(2)

    assert world.run(straight(other), "restart") == {"a": 7}
    assert world.run(straight(other)) == {}


def test_a_new_sink_begins_with_the_first_row_and_no_other_is_concerned(world: World) -> None:
    world.run(branches("a", expensive=True))

    assert world.run(branches("a", "b", expensive=True)) == {"b": 5}
    assert world.run(branches("b", expensive=True)) == {}
    world.add(1)
    assert world.run(branches("b", expensive=True)) == {"b": 1}
    assert world.run(branches("a", "b", expensive=True)) == {"a": 1}


def test_a_sink_that_is_left_out_goes_back_with_what_it_reads(world: World) -> None:
    world.run(branches("a", "b", expensive=True))
    only_a = branches("a", function=other, expensive=True)
    assert world.run(only_a, "restart") == {"a": 5}

    assert world.run(branches("a", "b", function=other, expensive=True)) == {"b": 5}


def test_a_sink_that_was_left_out_before_its_input_changed_is_asked_about(world: World) -> None:
    world.run(branches("a", "b", expensive=True))
    world.run(branches("a", expensive=True))
    only_a = branches("a", function=other, expensive=True)
    assert world.run(only_a, "restart") == {"a": 5}

    both = branches("a", "b", function=other, expensive=True)
    for choice in ("fail", "continue"):
        with pytest.raises(JobChanged, match="step 'b' changed: what it did before is out of date"):
            world.run(both, choice)
    assert world.run(both, "restart") == {"b": 5}
    assert world.run(both) == {}


def test_a_sink_that_was_left_out_while_its_input_went_on_otherwise_may_go_on(world: World) -> None:
    world.run(branches("a", "b", expensive=True))
    world.add(2)
    assert world.run(branches("a", function=other, expensive=True), "continue") == {"a": 2}

    both = branches("a", "b", function=other, expensive=True)
    with pytest.raises(JobChanged, match="step 'b' changed: what feeds it, while it was left out"):
        world.run(both)
    assert world.run(both, "continue") == {"b": 2}


def test_a_step_that_begins_to_be_kept_does_not_send_rows_twice(world: World) -> None:
    """As it feeds two from now on, the first would get all its rows again from another journal."""
    assert world.run(branches("a")) == {"a": 5}
    for choice in ("fail", "continue"):
        with pytest.raises(JobChanged, match="step 'a' changed: which rows it reads"):
            world.run(branches("a", "b"), choice)
    assert world.run(branches("a", "b"), "restart") == {"a": 5, "b": 5}
    with pytest.raises(JobChanged):
        world.run(branches("a"))
    assert world.run(branches("a"), "restart") == {"a": 5}
    world.add(1)
    assert world.run(branches("a")) == {"a": 1}
    assert world.run(branches("a", "b"), "restart") == {"a": 6, "b": 6}


def test_a_new_sink_is_refused_where_rows_are_gone(world: World) -> None:
    world.run(branches("a", "b"))
    world.truncate("made")

    assert world.run(branches("a", "b")) == {}
    with pytest.raises(UserError, match=r"step 'c' (.|\n)*to fix: job.reset\('made'\)"):
        world.run(branches("a", "b", "c"))


def test_a_step_that_did_nothing_yet_may_change_at_will() -> None:
    world = World()
    world.run(straight())
    world.run(straight(other))
    world.add(3)

    columns = "id bigint, url string, score double"
    assert world.run(straight(other)) == {"a": 3}
    empty = World()
    empty.run(branches("a", expensive=True))

    def fewer(orders: Step) -> None:
        made = orders.select("id", "url", "score", name="chosen").map(
            "made", same, schema=columns.replace("double", "float"), expensive=True
        )
        made.sink_parquet("/nowhere/a", name="a")

    assert empty.run(fewer) == {}


def test_a_restart_that_was_killed_half_way_goes_on_without_asking_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    world.run(branches("a"))
    world.run(branches("a", "b"), "restart")
    world.run(branches("a"), "restart")
    with monkeypatch.context() as patch:
        patch.setattr("millrace.pipeline.run.run_start.begin_again", killed)
        with pytest.raises(KeyboardInterrupt):
            world.run(branches("a", "b"), "restart")

    assert world.run(branches("a", "b")) == {"a": 5, "b": 5}


def test_a_map_that_was_kept_in_front_of_paid_calls_stays_kept_until_it_is_reset(
    world: World,
) -> None:
    assert world.run(in_front(durable=True)) == {"a": 5}
    world.add(2)

    assert world.run(in_front()) == {"a": 2}, "nothing is called for again"
    assert world.hops == ["made", "call", "a"]
    assert world.run(in_front()) == {}

    reset_step(world.broker, "job", "made")
    assert world.run(in_front()) == {"a": 7}
    assert world.hops == ["call", "a"]
    world.add(1)
    assert world.run(in_front()) == {"a": 1}
    assert world.hops == ["call", "a"], "and fused it stays"


def test_a_fused_map_that_is_to_be_kept_now_is_asked_about_before_calls_are_made_again(
    world: World,
) -> None:
    assert world.run(in_front()) == {"a": 5}

    with pytest.raises(JobChanged, match="step 'call' changed: which rows it reads"):
        world.run(in_front(durable=True))


@pytest.mark.parametrize("form", ["outline", "described", RECORDED])
def test_records_of_every_form_say_which_steps_were_kept(form: str) -> None:
    parts = [
        {"name": "made", "kind": "map", "inputs": [], "prefixes": ["acme/orders"]},
        {"name": "call", "kind": "map", "inputs": ["made"], "prefixes": ["jobs/job/made/out"]},
    ]
    told = [
        {
            "name": part["name"],
            "kind": "map",
            "inputs": [],
            "told_by": {},
            "kept": True,
            "reads": [],
        }
        for part in parts
    ]
    detail: dict[str, Any] = {"outline": {"job": "job", "parts": parts}}
    detail |= {"described": {"parts": told}} if form == "described" else {}
    if form == RECORDED:
        detail = {RECORDED: {"job": "job", "parts": parts}}
    started = JobEvent(at_us=1, run=1, happened=JobEventKind.STARTED, step="", detail=detail)
    reset = replace(started, happened=JobEventKind.RESET, detail={"parts": ["made", "call"]})

    assert kept_before([started]) == {"made", "call"}
    assert kept_before([started, reset]) == set()
    assert kept_before([started, reset, started]) == {"made", "call"}


def test_a_sink_in_another_workspace_has_other_progress_after_each_reset(world: World) -> None:
    world.run(in_front())
    hop = Job("job", Written(known={ORDERS: VIDEOS}))
    hop.source("orders", journal=ORDERS).sink_journal("out", "a")
    (sink,) = hop._graph.hops

    before = sink_progress(RunHistory.open(world.broker, "job"), "an id", sink)
    assert before == "jobs/an id/job/a/progress-0"
    reset_step(world.broker, "job", "a")
    after = sink_progress(RunHistory.open(world.broker, "job"), "an id", sink)
    assert after == "jobs/an id/job/a/progress-1"
    reset_step(world.broker, "job", "call")
    again = sink_progress(RunHistory.open(world.broker, "job"), "an id", sink)
    assert again == "jobs/an id/job/a/progress-2", "a reset of what feeds it is one of it, too"
