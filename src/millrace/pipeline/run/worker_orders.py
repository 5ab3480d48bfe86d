"""The orders for the workers of a run, and the groups of workers that a job needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.config import Config
from millrace.log_lines import LogSettings, shown_logs
from millrace.metrics.traces import TracedWork, traced_work
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import JournalSink
from millrace.transport.owner.owner_endpoint import JournalAddress

Resources = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class SinkTarget:
    """How to reach the journals of another workspace, and where a sink has its progress there."""

    where: JournalAddress
    progress: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """The job, the run and the limits that a worker gets."""

    where: JournalAddress
    hops: tuple[Hop, ...]
    config: Config
    run: int
    time_zone: str
    workspace: str
    job_id: str
    """The id of the job, unique over all workspaces."""
    events_from: int
    """The offset of the run's first event in the job's record."""
    until_end: Mapping[str, int] | None
    """Journals that are read no further than to these offsets."""
    only: tuple[str, ...] | None
    """The hops that these workers may take; None for all."""
    versions: Mapping[str, str]
    targets: Mapping[str, SinkTarget] = field(default_factory=dict)
    """By sink: the journals of another workspace that it appends to."""
    progress: Mapping[str, str] = field(default_factory=dict)
    """By sink: the name of its progress, where that is kept with its rows."""
    logs: LogSettings | None = field(default_factory=shown_logs)
    traced: TracedWork | None = field(default_factory=traced_work)


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """Workers of one kind: the hops they may take, the resources of a task, and how many."""

    hops: tuple[str, ...] | None
    resources: Resources
    workers: int


def worker_groups(hops: Sequence[Hop], units: Mapping[str, int], slots: int) -> list[WorkerGroup]:
    """The groups of workers that a job needs: one for each set of resources that steps ask for."""
    by_resources: dict[Resources, list[Hop]] = {}
    for hop in hops:
        by_resources.setdefault(tuple(sorted(hop.options.resources.items())), []).append(hop)
    groups = []
    for resources, own in sorted(by_resources.items()):
        needed = sum(min(units[hop.name], hop.options.workers or units[hop.name]) for hop in own)
        names = tuple(hop.name for hop in own) if len(by_resources) > 1 else None
        groups.append(WorkerGroup(names, resources, max(1, min(slots, needed))))
    return groups


def waves(workers: int, waves_max: int) -> list[int]:
    """The number of tasks in each of at most `waves_max` Spark jobs."""
    count = min(workers, waves_max)
    return [workers // count + (number < workers % count) for number in range(count)]


def shippable(hop: Hop) -> Hop:
    """A hop without inputs of its steps, or open workspaces: these stay in the driver."""
    steps = tuple(replace(step, inputs=()) for step in hop.steps)
    sink = None if hop.sink is None else replace(hop.sink, inputs=())
    if isinstance(sink, JournalSink):
        sink = replace(sink, workspace=None)
    keyed = tuple(map(shippable, hop.keyed))
    return replace(hop, steps=steps, sink=sink, keyed=keyed)


def spent_on(
    hops: Sequence[Hop], outcomes: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    """For each hop the seconds of its workers, and those in functions, fused ones included."""
    names = {hop.name: {hop.name, *(step.name for step in hop.steps)} for hop in hops}
    sums: dict[str, tuple[float, float]] = {}
    for outcome in outcomes:
        inside = outcome["seconds_in_function"]
        for name, worked_s in outcome["seconds_per_hop"].items():
            before = sums.get(name, (0.0, 0.0))
            called_s = sum(inside.get(step, 0.0) for step in names[name])
            sums[name] = (before[0] + worked_s, before[1] + called_s)
    return sums
