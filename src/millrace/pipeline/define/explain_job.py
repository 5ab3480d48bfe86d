"""A job as text: its hops in order, fused steps, the journals of rows, and progress. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.pipeline.core.hops import output_prefix
from millrace.pipeline.core.job_record import APPENDING_SINKS, JobPart, JobRecord
from millrace.pipeline.define.job_changes import Changes
from millrace.text import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """The progress of a source or hop."""

    rows: int
    backlog: int = 0
    calls: int | None = None


def explain(
    record: JobRecord,
    *,
    done: Mapping[str, StepProgress] | None = None,
    changes: Changes | None = None,
) -> str:
    """The text; with progress and changes, if the job ran before."""
    affected = () if changes is None else changes.affected
    sources = [part for part in record.parts if part.is_source]
    hops = [part for part in record.parts if part.is_kept and not part.is_source]
    lines = [f"job {record.job}: {counted(len(sources), 'source')}, {counted(len(hops), 'hop')}"]
    for source in sources:
        lines.append(_source(record, source))
        lines.append(f"  columns {', '.join(source.columns)}")
        lines += _progress(source.name, done, affected)
    for hop in hops:
        lines.append(f"hop {hop.name} -> {_target(record, hop)}")
        lines.append(f"  {_step(hop)}{_options(record, hop)}")
        fused = [part for part in record.parts if part.name in hop.fused]
        fused.sort(key=lambda part: hop.fused.index(part.name))
        lines += [f"  {_step(step)} (fused)" for step in reversed(fused)]
        lines += [f"    read {name}" for name in record.feeders(hop.name)]
        lines += _progress(hop.name, done, affected)
    if changes is not None:
        lines += [f"added: {', '.join(changes.added)}"] if changes.added else []
        lines += [f"removed: {', '.join(changes.removed)}"] if changes.removed else []
    return "\n".join(lines)


def _source(record: JobRecord, source: JobPart) -> str:
    if source.kind == "journals":
        return f"source {source.name}: journals {', '.join(source.journals)}"
    version = f" version {source.identity['version']}" if source.identity.get("version") else ""
    where = f"{output_prefix(record.job, source.name)}, {counted(source.partitions, 'partition')}"
    return f"source {source.name}: {source.kind}{version} -> {where}"


def _target(record: JobRecord, hop: JobPart) -> str:
    match hop.kind:
        case "sink_parquet":
            return f"files in {hop.target}"
        case kind if kind in APPENDING_SINKS:
            return f"{APPENDING_SINKS[kind]} {hop.target}"
        case "sink":
            return f"calls of {hop.function}"
        case _:
            where = output_prefix(record.job, hop.name)
            return f"{where}, {counted(hop.partitions, 'partition')}"


def _step(step: JobPart) -> str:
    if step.function:
        called_for = step.identity.get("called for", "batch with the states of its keys")
        return f"{step.kind} {step.name} with {step.function}, for each {called_for}"
    named = step.kind if step.name == step.kind else f"{step.kind} {step.name}"
    if "aggregates" in step.identity:
        return f"{named}: {step.identity['aggregates']}, by {step.identity['keys']}"
    for word in ("condition", "expressions", "keys"):
        if word in step.identity:
            return f"{named}: {step.identity[word]}"
    return named


_PAID: Final = {
    "usd": "at most ${:g}",
    "tokens": "at most {:,} tokens",
    "tpm": "at most {:,} tokens/min",
    "concurrent": "at most {} calls at once",
}


def _options(record: JobRecord, hop: JobPart) -> str:
    """The options that the user gave; a warning if a step has more workers than partitions."""
    if not hop.function:
        return ""
    words = ["calls recorded"] if hop.expensive else []
    words += [f"at most {counted(hop.workers, 'worker')}"] if hop.workers else []
    most = sum(_partitions(record, name) for name in record.feeders(hop.name))
    if hop.workers and hop.workers > most:
        words.append(f"{most} at once, since its input has {counted(most, 'partition')}")
    words += [f"{amount:g} {name}" for name, amount in hop.resources.items()]
    words += [f"at most {hop.rate:g} calls/s"] if hop.rate else []
    words += [f"at most {counted(hop.max_calls, 'call')}"] if hop.max_calls else []
    words += [text.format(hop.paid[name]) for name, text in _PAID.items() if name in hop.paid]
    return f" ({', '.join(words)})" if words else ""


def _partitions(record: JobRecord, name: str) -> int:
    """The number of journals of a part; those of the user may be any number."""
    part = record.part(name)
    return sys.maxsize if part is None or part.kind == "journals" else part.partitions


def _progress(
    name: str, done: Mapping[str, StepProgress] | None, affected: Sequence[str]
) -> list[str]:
    if done is None or name not in done:
        return []
    progress = done[name]
    calls = "" if progress.calls is None else f", {counted(progress.calls, 'call')} made"
    left = f", {counted(progress.backlog, 'row')} to do" if progress.backlog else ""
    changed = ", changed since: see on_change" if name in affected else ""
    return [f"  done: {counted(progress.rows, 'row')}{calls}{left}{changed}"]
