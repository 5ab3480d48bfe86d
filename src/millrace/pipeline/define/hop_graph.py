"""Cuts the graph of a job into hops. Pure.

A step's rows are kept in journals if it is expensive or durable, has workers, partitions or
resources of its own, feeds several, or is `key_by`; sinks end hops, too. Other steps are fused into
the hop of the next one that is kept. Two more are kept, since a hop is one line of steps: what
feeds a union, and a cheap map in front of calls that are recorded, of which each has one input row.
A map that makes at most one row of a row is fused there as well, unless it was kept when the job
ran before: paid results are recorded under the offsets of its journals.

Invariant: every step is part of one hop, or, if it is not kept and feeds several, of one in each
branch. Hops come in the order of their last steps, so a hop comes behind all that feed it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from millrace.errors import UserError
from millrace.journal.core.journal_names import under
from millrace.pipeline.core.hops import Hop, output_prefix
from millrace.pipeline.core.job_model import (
    Anything,
    FilterStep,
    FunctionSink,
    JobNode,
    JournalSink,
    JournalSource,
    KafkaSink,
    KeyBy,
    Map,
    ParquetSink,
    PostgresSink,
    RowStep,
    SavedSource,
    Select,
    StateStep,
    StepOptions,
    TableSink,
    UnionStep,
)
from millrace.pipeline.define.step_options import is_of_its_own

SOURCES: Final = (SavedSource, JournalSource)
SINKS: Final = (ParquetSink, JournalSink, TableSink, PostgresSink, KafkaSink, FunctionSink)


def hops_of(
    job: str,
    nodes: Sequence[Anything],
    *,
    partitions: int,
    journals: Mapping[str, int] = MappingProxyType({}),
    kept_before: Collection[str] = (),
) -> tuple[Hop, ...]:
    """The hops of a job.

    `partitions` is the assumed number of journals of an input whose number is not known; `journals`
    is the number of journals under each name and prefix of the user that a source reads.
    `kept_before` names the steps that were kept when they last ran.
    """
    check_graph(job, nodes)
    cut = _KeptNodes(nodes, kept_before)
    known = MappingProxyType({"": partitions, **journals})
    hops: dict[str, Hop] = {}
    for node in nodes:
        if node.name in cut.kept and not isinstance(node, SOURCES):
            hops[node.name] = _hop(job, node, cut, hops, known)
    return tuple(replace(hop, feeds=_fed_by(hop, hops)) for hop in hops.values())


def readers_of(nodes: Sequence[JobNode]) -> dict[str, list[JobNode]]:
    """The readers of each node, in order."""
    readers: dict[str, list[JobNode]] = {node.name: [] for node in nodes}
    for node in nodes:
        for given in node.inputs:
            readers[given.name].append(node)
    return readers


def downstream(nodes: Sequence[JobNode], names: set[str]) -> tuple[str, ...]:
    """The names of these nodes and of all nodes that depend on them, in order."""
    reached = set(names)
    for node in nodes:
        if any(given.name in reached for given in node.inputs):
            reached.add(node.name)
    return tuple(node.name for node in nodes if node.name in reached)


def most_workers(nodes: Sequence[JobNode], name: str) -> int:
    """The largest number of workers of the steps that read a node, before the next `key_by`."""
    reached, most = {name}, 0
    for node in nodes:
        if any(given.name in reached for given in node.inputs) and not isinstance(node, KeyBy):
            reached.add(node.name)
            if isinstance(node, Map | FunctionSink):
                most = max(most, node.options.workers or 0)
    return most


def check_graph(job: str, nodes: Sequence[Anything]) -> None:
    """Refuse a job without work, or a step whose rows no other step reads."""
    if not any(isinstance(node, SOURCES) for node in nodes):
        raise UserError(f"job {job!r} has no source\n  to fix: begin with job.source(name, ...)")
    known: set[str] = set()
    for node in nodes:
        strange = [given.name for given in node.inputs if given.name not in known]
        assert not strange, f"{node.name} comes before {strange}, which it reads"
        assert node.name not in known, f"two nodes are named {node.name}"
        assert node.inputs or isinstance(node, SOURCES), f"{node.name} reads nothing"
        known.add(node.name)
    if all(isinstance(node, SOURCES) for node in nodes):
        raise UserError(
            f"job {job!r} has no steps\n  to fix: add a sink, such as source.sink_parquet(path)"
        )
    readers = readers_of(nodes)
    for node in nodes:
        unread = not readers[node.name] and not isinstance(node, SINKS)
        if unread and isinstance(node, SOURCES):
            raise UserError(
                f"nobody reads source {node.name!r} of job {job!r}\n  to fix: leave it out"
            )
        if unread and not _keeps(node):
            raise UserError(
                f"nobody reads what step {node.name!r} of job {job!r} makes\n"
                "  to fix: give it a sink, keep a map's rows with durable=True, or leave it out"
            )


def _keeps(node: JobNode) -> bool:
    """Whether a node's rows are kept, independent of its readers."""
    match node:
        case Map():
            options = node.options
            return options.expensive or bool(options.durable) or is_of_its_own(options)
        case SavedSource() | JournalSource() | KeyBy() | StateStep():
            return True
        case _:
            return isinstance(node, SINKS)


def _fed_by(hop: Hop, hops: Mapping[str, Hop]) -> tuple[str, ...]:
    own = output_prefix(hop.job, hop.name)
    return tuple(other.name for other in hops.values() if own in other.inputs)


class _KeptNodes:
    """The kept nodes, and the nodes that are fused in front of each."""

    def __init__(self, nodes: Sequence[Anything], kept_before: Collection[str]) -> None:
        self._kept_before = frozenset(kept_before)
        self._nodes: dict[str, JobNode] = {node.name: node for node in nodes}
        self._readers = readers_of(nodes)
        self.kept: set[str] = {node.name for node in nodes if _keeps(node)}
        for node in nodes:
            if len(self._readers[node.name]) > 1 and not _may_run_twice(node):
                self.kept.add(node.name)
        for node in nodes:
            if isinstance(node, UnionStep):
                self._keep_what_feeds(node)
        for node in nodes:
            if isinstance(node, FunctionSink) or (isinstance(node, Map) and node.options.expensive):
                self._keep_maps_before(node)

    def inputs(self, node: JobNode) -> tuple[JobNode, ...]:
        """The kept nodes that the hop of a kept node reads, through its fused nodes."""
        return tuple(self._leaves(node))

    def line(self, node: JobNode) -> tuple[JobNode, ...]:
        """The steps of a kept node's hop, in order: one line, as only unions read several."""
        before = [given.name for given in node.inputs if given.name not in self.kept]
        return (*(step for name in before for step in self.line(self._nodes[name])), node)

    def _leaves(self, node: JobNode) -> Iterator[JobNode]:
        """The kept nodes that a node reads, through nodes that are not kept."""
        for given in node.inputs:
            if given.name in self.kept:
                yield self._nodes[given.name]
            else:
                yield from self._leaves(given)

    def _keep_what_feeds(self, union: UnionStep) -> None:
        for given in union.inputs:
            if not isinstance(given, UnionStep):
                self._keep(given, f"the union {union.name!r} reads it")
        names = [leaf.name for leaf in self._leaves(union)]
        if len(set(names)) < len(names):
            self.kept |= {given.name for given in union.inputs}

    def _keep_maps_before(self, node: JobNode) -> None:
        for given in node.inputs:
            if given.name in self.kept:
                continue
            if not _makes_at_most_one(given):
                why = "calls of a step behind it are recorded for single rows of it"
                self._keep(given, f"{why}, and its function may return several for one row")
            elif isinstance(given, Map) and given.name in self._kept_before:
                self._keep(given, "paid results are recorded for its rows, until you reset it")
            else:
                self._keep_maps_before(given)

    def _keep(self, node: JobNode, why: str) -> None:
        if _may_run_twice(node):
            raise UserError(
                f"step {node.name!r} has durable=False and must be kept\n  why: {why}\n"
                "  to fix: leave durable=False out"
            )
        self.kept.add(node.name)


def _makes_at_most_one(node: JobNode) -> bool:
    """Whether a step makes at most one row of a row, so that offsets still name single calls."""
    if isinstance(node, Map):
        return node.calling.at_most_one
    return isinstance(node, FilterStep | Select | UnionStep)


def _may_run_twice(node: JobNode) -> bool:
    return isinstance(node, Map) and node.options.durable is False


def _hop(
    job: str, node: JobNode, cut: _KeptNodes, hops: Mapping[str, Hop], known: Mapping[str, int]
) -> Hop:
    inputs = cut.inputs(node)
    line = cut.line(node)
    steps = tuple(step for step in line if isinstance(step, RowStep))
    sink = node if isinstance(node, SINKS) else None
    assert len(steps) + (sink is not None) == len(line), f"{node.name} has a source in its line"
    before = [hops[given.name].depth for given in inputs if given.name in hops]
    single = [name for given in inputs for name in _journals(job, given) if _is_single(given, name)]
    return Hop(
        job=job,
        name=node.name,
        inputs=_inputs(job, node, inputs),
        schema=inputs[0].schema,
        steps=steps,
        sink=sink,
        output=node.schema,
        partitions=0 if sink is not None else _partitions(node, inputs, hops, known),
        depth=1 + max(before, default=0),
        feeds=(),
        keyed=tuple(hops[given.name] for given in inputs) if isinstance(node, StateStep) else (),
        single=tuple(single),
    )


def _inputs(job: str, node: JobNode, inputs: Sequence[JobNode]) -> tuple[str, ...]:
    """The journals that a hop reads; refuses a journal read twice: its rows would count once."""
    names = [name for given in inputs for name in _journals(job, given)]
    for index, name in enumerate(names):
        for other in names[:index]:
            if under(name, other) or under(other, name):
                raise UserError(
                    f"step {node.name!r} of job {job!r} reads journals twice\n"
                    f"  found: {other} and {name}\n"
                    "  to fix: let one source read them, or put a select() behind one of them"
                )
    return tuple(names)


def _journals(job: str, node: JobNode) -> tuple[str, ...]:
    """The journals, or prefixes, of a kept node's rows."""
    if isinstance(node, JournalSource):
        return node.journals
    return (output_prefix(job, node.name),)


def _is_single(node: JobNode, name: str) -> bool:
    return isinstance(node, JournalSource) and not name.endswith("/")


def _partitions(
    node: JobNode, inputs: Sequence[JobNode], hops: Mapping[str, Hop], known: Mapping[str, int]
) -> int:
    """The number of journals of a kept step's rows."""
    if isinstance(node, KeyBy):
        return node.partitions
    options = node.options if isinstance(node, Map) else StepOptions()
    if options.partitions is not None:
        return options.partitions
    units = 0
    for given in inputs:
        match given:
            case SavedSource():
                units += given.partitions
            case JournalSource():
                units += sum(known.get(name, known[""]) for name in given.journals)
            case _:
                units += hops[given.name].partitions
    return max(units, options.workers or 0)
