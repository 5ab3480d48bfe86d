"""Laws of any job: how it is cut into hops, how it is told, and what is noticed when it changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.laws import examples
from tests.unit.pipeline.define.written_kit import VIDEOS, a_job, a_source, same, several

from millrace.errors import UserError
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import FilterStep, FunctionSink, Map, Select, UnionStep
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.define.hop_graph import SINKS, SOURCES, hops_of, readers_of
from millrace.pipeline.define.job import Job
from millrace.pipeline.define.job_changes import compare
from millrace.pipeline.define.steps import Step

KINDS = ("map", "several", "expensive", "durable", "fused", "filter", "select", "key_by", "union")
LAW = settings(max_examples=examples(60), deadline=None)
ENDS = ("parquet", "journal", "function")


@dataclass(frozen=True)
class Line:
    """One call: what is added, behind which earlier handles, and what of it may change."""

    kind: str
    behind: tuple[int, ...]
    number: int


def other(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"id": 0}


@st.composite
def plans(draw: st.DrawFn) -> list[Line]:
    """Calls that write a job down."""
    count = draw(st.integers(1, 3))
    lines = [Line("source", (), 0) for _ in range(count)]
    for _ in range(draw(st.integers(0, 9))):
        kind = draw(st.sampled_from(KINDS))
        places = st.integers(0, len(lines) - 1)
        behind = (
            draw(st.lists(places, min_size=2, max_size=3, unique=True))
            if (kind == "union" and len(lines) > 1)
            else [draw(places)]
        )
        lines.append(
            Line(
                "filter" if kind == "union" and len(behind) == 1 else kind,
                tuple(behind),
                draw(st.integers(0, 1)),
            )
        )
    return lines


def written(lines: Sequence[Line], ends: Sequence[str] = ENDS) -> Job:
    """The job; what nobody reads gets a sink."""
    job = a_job()
    made: list[Step] = []
    for place, line in enumerate(lines):
        behind = [made[number] for number in line.behind]
        made.append(_added(job, f"n{place}", line, behind))
    read = {number for line in lines for number in line.behind}
    for place, step in enumerate(made):
        if place not in read:
            _ended(step, f"end{place}", ends[place % len(ends)])
    return job


def _added(job: Job, name: str, line: Line, behind: Sequence[Step]) -> Step:
    function: Callable[..., Any] = same if line.number == 0 else other
    function = several if line.kind == "several" else function
    match line.kind:
        case "source":
            return a_source(job, name)
        case "filter":
            return behind[0].filter(f"id > {line.number}", name=name)
        case "select":
            return behind[0].select("id", "url", f"score + {line.number} AS score", name=name)
        case "key_by":
            return behind[0].key_by("id" if line.number == 0 else "url", name=name)
        case "union":
            return behind[0].union(*behind[1:], name=name)
        case kind:
            return behind[0].map(
                name,
                function,
                schema=VIDEOS,
                expensive=kind == "expensive",
                durable={"durable": True, "fused": False}.get(kind),
                version=f"{line.number}" if kind == "several" else None,
            )


def _ended(step: Step, name: str, kind: str) -> None:
    match kind:
        case "parquet":
            step.sink_parquet(f"/out/{name}", name=name)
        case "journal":
            step.sink_journal(f"out/{name}", name=name)
        case _:
            step.sink(name, same)


def cut(job: Job) -> tuple[Hop, ...]:
    """Its hops; jobs in which a step must be kept that may not be are left out."""
    try:
        return job._graph.hops
    except UserError as error:
        assume("has durable=False and must be kept" not in str(error))
        raise


def line_of(hop: Hop) -> list[str]:
    return [step.name for step in hop.steps] + ([hop.sink.name] if hop.sink else [])


@LAW
@given(plans())
def test_every_step_is_in_one_hop_or_in_one_of_each_branch(lines: list[Line]) -> None:
    job = written(lines)
    hops = cut(job)
    readers = readers_of(job._graph.nodes)
    counted = Counter(name for hop in hops for name in line_of(hop))

    steps = [node for node in job._graph.nodes if not isinstance(node, SOURCES)]
    assert set(counted) == {node.name for node in steps}
    for node in steps:
        may_run_twice = isinstance(node, Map) and node.options.durable is False
        behind_such = any(
            isinstance(reader, Map) and reader.options.durable is False
            for reader in _all_behind(node.name, readers)
        )
        if not may_run_twice and not behind_such:
            assert counted[node.name] == 1


def _all_behind(name: str, readers: dict[str, list[Any]]) -> list[Any]:
    found = list(readers[name])
    for reader in readers[name]:
        found += _all_behind(reader.name, readers)
    return found


@LAW
@given(plans())
def test_a_hop_is_one_line_in_the_order_it_was_written_and_ends_kept(lines: list[Line]) -> None:
    job = written(lines)
    place = {node.name: number for number, node in enumerate(job._graph.nodes)}
    for hop in cut(job):
        line = line_of(hop)
        assert line[-1] == hop.name
        assert [place[name] for name in line] == sorted(place[name] for name in line)
        assert (hop.sink is None) == (hop.partitions > 0)
        assert hop.inputs
        for step, after in zip(hop.steps, hop.steps[1:], strict=False):
            assert step.name in [given.name for given in after.inputs]
            assert not (isinstance(step, Map) and step.options.expensive)


@LAW
@given(plans())
def test_hops_read_what_others_write_and_nobody_waits_for_himself(lines: list[Line]) -> None:
    job = written(lines)
    hops = cut(job)
    written_by = {f"jobs/captions/{hop.name}/out": hop for hop in hops if hop.sink is None}
    sources = {f"jobs/captions/{n.name}/out" for n in job._graph.nodes if isinstance(n, SOURCES)}
    seen: set[str] = set(sources)
    for hop in hops:
        assert set(hop.inputs) <= seen
        assert len(set(hop.inputs)) == len(hop.inputs)
        depths = [written_by[name].depth for name in hop.inputs if name in written_by]
        assert hop.depth == 1 + max(depths, default=0)
        for name in hop.inputs:
            assert name in sources or hop.name in written_by[name].feeds
        seen.add(f"jobs/captions/{hop.name}/out")
    fed = {(name, hop.name) for hop in hops for name in hop.feeds}
    read = {(r.name, written_by[i].name) for r in hops for i in r.inputs if i in written_by}
    assert fed == read


@LAW
@given(plans())
def test_each_recorded_call_is_for_one_input_row(lines: list[Line]) -> None:
    """In front of calls that are recorded no step may make several rows of one."""
    for hop in cut(written(lines)):
        if hop.expensive is not None:
            before = hop.steps if isinstance(hop.sink, FunctionSink) else hop.steps[:-1]
            assert all(
                isinstance(step, FilterStep | Select | UnionStep)
                or (isinstance(step, Map) and step.calling.at_most_one)
                for step in before
            )


@LAW
@given(plans())
def test_every_row_reaches_every_sink_once(lines: list[Line]) -> None:
    """Each way from a source to a sink is a way through hops, and the other way round."""
    job = written(lines)
    hops = cut(job)
    ways = _ways({node.name: [g.name for g in node.inputs] for node in job._graph.nodes})
    made = {f"jobs/captions/{hop.name}/out": hop for hop in hops}
    through: Counter[tuple[str, str]] = Counter()

    def back(hop: Hop, sink: str) -> None:
        for name in hop.inputs:
            if name in made:
                back(made[name], sink)
            else:
                through[name.split("/")[2], sink] += 1

    for hop in hops:
        if hop.sink is not None:
            back(hop, hop.name)
    sources = {node.name for node in job._graph.nodes if isinstance(node, SOURCES)}
    sinks = {node.name for node in job._graph.nodes if isinstance(node, SINKS)}
    assert through == {
        pair: n for pair, n in ways.items() if pair[0] in sources and pair[1] in sinks
    }


def _ways(inputs: dict[str, list[str]]) -> Counter[tuple[str, str]]:
    """How many ways lead from each node to each other."""
    found: Counter[tuple[str, str]] = Counter()
    for name, before in inputs.items():
        found[name, name] = 1
        for other_name in list(inputs):
            for one in before:
                if found[other_name, one]:
                    found[other_name, name] += found[other_name, one]
    return Counter({pair: n for pair, n in found.items() if n})


@LAW
@given(plans())
def test_any_job_can_be_told_and_recorded(lines: list[Line]) -> None:
    job = written(lines)
    cut(job)
    text = str(job.explain())
    described = job._graph.record()

    assert all(any(node.name in line for line in text.splitlines()) for node in job._graph.nodes)
    assert JobRecord.from_json(json.loads(json.dumps(described.to_json()))) == described
    assert not compare([described], written(lines)._graph.record())


@LAW
@given(plans(), st.data())
def test_a_step_that_does_something_else_is_noticed_with_all_behind_it(
    lines: list[Line], data: st.DataObject
) -> None:
    job = written(lines)
    cut(job)
    place = data.draw(st.integers(0, len(lines) - 1))
    changed = [*lines]
    changed[place] = replace(lines[place], number=1 - lines[place].number)
    found = compare([job._graph.record()], written(changed)._graph.record())

    if lines[place].kind in ("source", "union"):
        assert not found
        return
    readers = readers_of(job._graph.nodes)
    behind = {f"n{place}", *(node.name for node in _all_behind(f"n{place}", readers))}
    kept = {part.name for part in job._graph.record().parts if part.is_kept}
    assert [change.name for change in found.changed] == [f"n{place}"]
    assert set(found.affected) == behind & kept
    assert not found.stuck


@LAW
@given(plans())
def test_hops_do_not_depend_on_how_many_partitions_there_are(lines: list[Line]) -> None:
    job = written(lines)
    few = cut(job)
    many = hops_of(job.name, job._graph.nodes, partitions=99)

    assert [line_of(hop) for hop in few] == [line_of(hop) for hop in many]
