"""A job as text: its hops in order, what is fused into each, where rows lie, what is done. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.pipeline.core import job_model
from millrace.pipeline.core.hops import Hop, output_prefix
from millrace.pipeline.define import source_identity
from millrace.pipeline.define.job_changes import Changes
from millrace.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """How far a source or hop is."""

    rows: int
    backlog: int = 0
    calls: int | None = None


def explain(
    job: str,
    nodes: Sequence[job_model.Anything],
    hops: Sequence[Hop],
    *,
    done: Mapping[str, StepProgress] | None = None,
    changes: Changes | None = None,
) -> str:
    """The text; with what was done before, if the job ran, and what of it does not count now."""
    affected = () if changes is None else changes.affected
    sources = [n for n in nodes if isinstance(n, job_model.SavedSource | job_model.JournalSource)]
    lines = [f"job {job}: {counted(len(sources), 'source')}, {counted(len(hops), 'hop')}"]
    for source in sources:
        lines.append(_source(job, source))
        lines.append(f"  columns {', '.join(source.schema.names)}")
        lines += _so_far(source.name, done, affected)
    units = _units(job, sources, hops)
    for hop in hops:
        lines.append(f"hop {hop.name} -> {_target(hop)}")
        steps: list[job_model.Anything] = [*hop.steps, *((hop.sink,) if hop.sink else ())]
        most = sum(units.get(name, sys.maxsize) for name in hop.inputs)
        lines += [f"  {_step(step)}{_how(step, hop, most)}" for step in reversed(steps)]
        lines += [f"    read {name}" for name in _read(job, hop, sources)]
        lines += _so_far(hop.name, done, affected)
    if changes is not None:
        lines += [f"added: {', '.join(changes.added)}"] if changes.added else []
        lines += [f"removed: {', '.join(changes.removed)}"] if changes.removed else []
    return "\n".join(lines)


def _source(job: str, source: job_model.SavedSource | job_model.JournalSource) -> str:
    if isinstance(source, job_model.JournalSource):
        return f"source {source.name}: journals {', '.join(source.journals)}"
    version = f" version {source.version}" if source.version else ""
    where = f"{output_prefix(job, source.name)}, {counted(source.partitions, 'partition')}"
    return f"source {source.name}: {source_identity.kind_of(source.given)}{version} -> {where}"


def _target(hop: Hop) -> str:
    match hop.sink:
        case None:
            where = output_prefix(hop.job, hop.name)
            return f"{where}, {counted(hop.partitions, 'partition')}"
        case job_model.ParquetSink():
            return f"files in {hop.sink.path}"
        case job_model.JournalSink():
            return f"journal {hop.sink.journal}"
        case job_model.FunctionSink():
            return f"calls of {hop.sink.calling.name}"


def _step(step: job_model.Anything) -> str:
    match step:
        case job_model.Map():
            return f"map {step.name} with {step.calling.name}, for each {step.calling.rows}"
        case job_model.FilterStep():
            return f"{_own('filter', step)}: {step.condition}"
        case job_model.Select():
            return f"{_own('select', step)}: {', '.join(step.columns)}"
        case job_model.KeyBy():
            return f"{_own('key_by', step)}: {', '.join(step.keys)}"
        case job_model.FunctionSink():
            return f"sink {step.name} with {step.calling.name}, for each {step.calling.rows}"
        case job_model.ParquetSink():
            return _own("sink_parquet", step)
        case job_model.JournalSink():
            return _own("sink_journal", step)
        case _:
            return _own("union", step)


def _own(kind: str, step: job_model.Anything) -> str:
    """A kind of step, with its name if that says more."""
    return kind if step.name == kind else f"{kind} {step.name}"


def _units(
    job: str,
    sources: Sequence[job_model.SavedSource | job_model.JournalSource],
    hops: Sequence[Hop],
) -> dict[str, int]:
    """How many journals lie under each prefix of the job's own."""
    taken = {s.name: s.partitions for s in sources if isinstance(s, job_model.SavedSource)}
    made = taken | {hop.name: hop.partitions for hop in hops}
    return {output_prefix(job, name): count for name, count in made.items()}


def _how(step: job_model.Anything, hop: Hop, most: int) -> str:
    """How a step is run, as far as the user said; at most so many workers find something to do."""
    if step.name != hop.name:
        return " (fused)"
    if not isinstance(step, job_model.Map | job_model.FunctionSink):
        return ""
    options = step.options
    said = ["calls recorded"] if hop.expensive is not None else []
    said += [f"at most {counted(options.workers, 'worker')}"] if options.workers else []
    if options.workers and options.workers > most:
        said.append(f"{most} at once, since its input has {counted(most, 'partition')}")
    said += [f"{amount:g} {name}" for name, amount in options.resources.items()]
    said += [f"at most {options.rate:g} calls/s"] if options.rate else []
    said += [f"at most {counted(options.max_calls, 'call')}"] if options.max_calls else []
    return f" ({', '.join(said)})" if said else ""


def _read(
    job: str, hop: Hop, sources: Sequence[job_model.SavedSource | job_model.JournalSource]
) -> list[str]:
    """What a hop reads, by the names the user gave."""
    named = {
        name: source.name
        for source in sources
        if isinstance(source, job_model.JournalSource)
        for name in source.journals
    }
    prefix, ending = output_prefix(job, "|").split("|")
    return [named.get(name, name.removeprefix(prefix).removesuffix(ending)) for name in hop.inputs]


def _so_far(
    name: str, done: Mapping[str, StepProgress] | None, affected: Sequence[str]
) -> list[str]:
    if done is None or name not in done:
        return []
    known = done[name]
    calls = "" if known.calls is None else f", {counted(known.calls, 'call')} made"
    left = f", {counted(known.backlog, 'row')} to do" if known.backlog else ""
    again = ", changed since: see on_change" if name in affected else ""
    return [f"  done: {counted(known.rows, 'row')}{calls}{left}{again}"]
