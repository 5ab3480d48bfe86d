"""Makes the record of a job from its nodes and hops, and reads records of earlier runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.pipeline.core import job_model
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import (
    APPENDING_SINKS,
    JobPart,
    JobRecord,
    has_identities,
)
from millrace.pipeline.define import source_identity

TIME_ZONE: Final = "time zone"
"""The word for the session's time zone, where an expression may depend on it."""
_SOURCES: Final = (job_model.SavedSource, job_model.JournalSource)
_WITH_EXPRESSIONS: Final = (job_model.FilterStep, job_model.Select, job_model.StateStep)


def record_of(
    job: str, nodes: Sequence[job_model.Anything], hops: Sequence[Hop], zone: str | None
) -> JobRecord:
    """The record of a job; `zone` is the session's time zone, None without a Spark session."""
    by_name = {hop.name: hop for hop in hops}
    return JobRecord(job, tuple(_part(node, by_name.get(node.name), zone) for node in nodes))


def records_of(events: Iterable[JobEvent]) -> list[JobRecord]:
    """The records of a job's runs that hold identities, oldest first."""
    return [
        JobRecord.from_event(event.detail)
        for event in events
        if event.happened is JobEventKind.STARTED and has_identities(event.detail)
    ]


@dataclass(frozen=True, slots=True)
class SetBack:
    """Parts that a run kept, and that a reset concerned since then."""

    stale: frozenset[str] = frozenset()
    """Parts that were left out while a part before them was set back: their input is new."""
    fresh: frozenset[str] = frozenset()
    """Parts that were set back themselves: they have done nothing."""


def set_back(events: Iterable[JobEvent]) -> SetBack:
    """The parts that the resets in these events concerned."""
    before: dict[str, set[str]] = {}
    stale: set[str] = set()
    fresh: set[str] = set()
    for event in events:
        if event.happened is JobEventKind.STARTED and has_identities(event.detail):
            record = JobRecord.from_event(event.detail)
            ran = {part.name for part in record.parts if part.is_kept}
            before |= {name: record.before(name) for name in ran}
            stale, fresh = stale - ran, fresh - ran
        if event.happened is JobEventKind.RESET:
            gone = set(event.detail["parts"])
            fresh |= gone
            stale |= {name for name, others in before.items() if others & gone}
            stale -= fresh
    return SetBack(frozenset(stale), frozenset(fresh))


def kept_before(events: Iterable[JobEvent]) -> frozenset[str]:
    """The parts that were kept when they last ran, without those that were set back since."""
    kept: set[str] = set()
    for event in events:
        if event.happened is JobEventKind.STARTED:
            for part in JobRecord.from_event(event.detail).parts:
                (kept.add if part.is_kept else kept.discard)(part.name)
        elif event.happened is JobEventKind.RESET:
            kept -= set(event.detail["parts"])
    return frozenset(kept)


def _part(node: job_model.Anything, hop: Hop | None, zone: str | None) -> JobPart:
    identity = {"columns": _columns(node.schema), **_identity(node)}
    if zone is not None and isinstance(node, _WITH_EXPRESSIONS):
        identity[TIME_ZONE] = zone
    is_source = isinstance(node, _SOURCES)
    return JobPart(
        name=node.name,
        kind=_kind(node),
        inputs=tuple(given.name for given in node.inputs),
        is_kept=is_source or hop is not None,
        identity=identity,
        columns=tuple(node.schema.names),
        journals=node.journals if isinstance(node, job_model.JournalSource) else (),
        target=_target(node),
        finished=isinstance(node, _SOURCES) and node.finished,
        **_hop_fields(node, hop),
        **_call_fields(node),
    )


def _hop_fields(node: job_model.Anything, hop: Hop | None) -> dict[str, Any]:
    if hop is None:
        return {"partitions": node.partitions} if isinstance(node, job_model.SavedSource) else {}
    return {
        "prefixes": hop.inputs,
        "single": hop.single,
        "fused": tuple(step.name for step in hop.steps if step.name != hop.name),
        "expensive": hop.expensive is not None,
        "depth": hop.depth,
        "partitions": hop.partitions,
    }


def _call_fields(node: job_model.Anything) -> dict[str, Any]:
    if isinstance(node, job_model.StateStep) and node.calling is not None:
        return {"function": node.calling.name}
    if not isinstance(node, job_model.Map | job_model.FunctionSink):
        return {}
    options = node.options
    limits, budget = options.limits, options.budget
    paid = {name: getattr(budget, name, None) for name in ("usd", "tokens")}
    paid |= {name: getattr(limits, name, None) for name in ("tpm", "concurrent")}
    return {
        "function": node.calling.name,
        "workers": options.workers,
        "rate": limits.rpm / 60 if limits is not None and limits.rpm is not None else None,
        "max_calls": None if budget is None else budget.calls,
        "paid": {name: value for name, value in paid.items() if value is not None},
        "resources": dict(options.resources),
    }


def _kind(node: job_model.Anything) -> str:
    match node:
        case job_model.SavedSource() | job_model.JournalSource():
            return _source_kind(node)
        case job_model.Map():
            return "map"
        case job_model.FilterStep():
            return "filter"
        case job_model.Select():
            return "select"
        case job_model.KeyBy():
            return "key_by"
        case job_model.StateStep():
            return node.operator.method
        case job_model.UnionStep():
            return "union"
        case job_model.ParquetSink():
            return "sink_parquet"
        case job_model.JournalSink():
            return "sink_journal"
        case job_model.TableSink() | job_model.PostgresSink() | job_model.KafkaSink():
            return node.target.method
        case job_model.FunctionSink():
            return "sink"


def _source_kind(node: job_model.SavedSource | job_model.JournalSource) -> str:
    if isinstance(node, job_model.JournalSource):
        return "journals"
    return source_identity.kind_of(node.given)


def _target(node: job_model.Anything) -> str:
    match node:
        case job_model.ParquetSink():
            return node.path
        case job_model.JournalSink():
            there = node.workspace
            return node.journal if there is None else f"{node.journal} in {there.path}"
        case job_model.TableSink() | job_model.PostgresSink() | job_model.KafkaSink():
            return node.target.where
        case _:
            return ""


def _identity(node: job_model.Anything) -> Mapping[str, str]:
    match node:
        case job_model.SavedSource():
            return source_identity.told_by(node.given) | {"version": node.version or ""}
        case job_model.JournalSource():
            return {"journals": ", ".join(node.journals)}
        case job_model.Map():
            large = {"large": ", ".join(node.options.large)} if node.options.large else {}
            return {"function": node.calling.identity, "called for": node.calling.rows, **large}
        case job_model.FunctionSink():
            return {"function": node.calling.identity, "called for": node.calling.rows}
        case job_model.FilterStep():
            return {"condition": node.condition}
        case job_model.Select():
            return {"expressions": ", ".join(node.columns)}
        case job_model.KeyBy() | job_model.StateStep():
            return _keys(node.keys) | _state_identity(node)
        case job_model.ParquetSink():
            by = {"partition by": ", ".join(node.partition_by)} if node.partition_by else {}
            return {"path": node.path, **by}
        case job_model.JournalSink():
            there = node.workspace
            return {"journal": node.journal} | ({} if there is None else {"workspace": there.path})
        case job_model.TableSink() | job_model.PostgresSink() | job_model.KafkaSink():
            keys = {} if isinstance(node, job_model.KafkaSink) else _keys(node.target.keys)
            return {APPENDING_SINKS[node.target.method]: node.target.where, **keys}
        case job_model.UnionStep():
            return {}


def _state_identity(node: job_model.KeyBy | job_model.StateStep) -> dict[str, str]:
    """Also over how many journals keys are spread: each of them has the state of its keys."""
    if isinstance(node, job_model.KeyBy):
        return {}
    by_key = [given for given in node.inputs if isinstance(given, job_model.KeyBy)]
    ranges = sum(given.partitions for given in by_key)
    called = {}
    if node.calling is not None:
        called = {"function": node.calling.identity, "state": _columns(node.state)}
    ttl = {} if node.ttl_us is None else {"ttl": f"{node.ttl_us} us"}
    return called | dict(node.operator.identity()) | ttl | {"key ranges": str(ranges)}


def _keys(names: Sequence[str]) -> dict[str, str]:
    return {"keys": ", ".join(names)} if names else {}


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
