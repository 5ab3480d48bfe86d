"""What a job was when it ran, as far as it decides results: recorded when a run starts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.pipeline.core import job_model
from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.define import source_identity

RECORDED: Final = "described"
"""Where the event of a start holds a job's description."""

TIME_ZONE: Final = "time zone"
"""The word for the session's time zone, where an expression may depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A source, step or sink, as far as it decides results."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    """Names of what feeds it."""
    told_by: Mapping[str, str]
    """What tells it from others, each under a word for the user."""
    kept: bool
    """Whether its rows are kept, or it is a sink."""
    reads: tuple[str, ...] = ()
    """Where it is kept: the journals its hop reads."""


@dataclass(frozen=True, slots=True)
class Description:
    """A job, as it is recorded; what feeds others comes first."""

    job: str
    parts: tuple[Described, ...]

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        return {"job": self.job, "parts": [asdict(part) for part in self.parts]}

    def before(self, name: str) -> set[str]:
        """All that a part depends on."""
        wanted = {name}
        for part in reversed(self.parts):
            if part.name in wanted:
                wanted |= set(part.inputs)
        return wanted - {name}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Description:
        """From a document."""
        return cls(
            document["job"],
            tuple(
                Described(
                    name=part["name"],
                    kind=part["kind"],
                    inputs=tuple(part["inputs"]),
                    told_by=dict(part["told_by"]),
                    kept=part["kept"],
                    reads=tuple(part["reads"]),
                )
                for part in document["parts"]
            ),
        )


def describe(
    job: str, nodes: Sequence[job_model.Anything], hops: Sequence[Hop], zone: str | None
) -> Description:
    """A job as it is recorded; `zone` is the session's time zone, None where no Spark was asked."""
    by_name = {hop.name: hop for hop in hops}
    parts = tuple(_described(node, by_name.get(node.name), zone) for node in nodes)
    return Description(job, parts)


def descriptions(happened: Iterable[JobEvent]) -> list[Description]:
    """What a job was when its runs started, oldest first."""
    return [
        Description.from_json(event.detail[RECORDED])
        for event in happened
        if event.happened is JobEventKind.STARTED and RECORDED in event.detail
    ]


@dataclass(frozen=True, slots=True)
class SetBack:
    """What was kept once, and concerned by a reset since it last was."""

    stale: frozenset[str] = frozenset()
    """Left out while something before it was set back: what it read has been made anew."""
    fresh: frozenset[str] = frozenset()
    """Set back itself: it has done nothing."""


def set_back(happened: Iterable[JobEvent]) -> SetBack:
    """What resets left of the runs before."""
    before: dict[str, set[str]] = {}
    stale: set[str] = set()
    fresh: set[str] = set()
    for event in happened:
        if event.happened is JobEventKind.STARTED and RECORDED in event.detail:
            described = Description.from_json(event.detail[RECORDED])
            ran = {part.name for part in described.parts if part.kept}
            before |= {name: described.before(name) for name in ran}
            stale, fresh = stale - ran, fresh - ran
        if event.happened is JobEventKind.RESET:
            gone = set(event.detail["parts"])
            fresh |= gone
            stale |= {name for name, others in before.items() if others & gone}
            stale -= fresh
    return SetBack(frozenset(stale), frozenset(fresh))


def _described(node: job_model.Anything, hop: Hop | None, zone: str | None) -> Described:
    told_by = {"columns": _columns(node.schema), **_told_by(node)}
    if zone is not None and isinstance(node, job_model.FilterStep | job_model.Select):
        told_by[TIME_ZONE] = zone
    source = isinstance(node, job_model.SavedSource | job_model.JournalSource)
    names = [given.name for given in node.inputs]
    return Described(
        name=node.name,
        kind=_kind(node),
        inputs=tuple(sorted(names) if isinstance(node, job_model.UnionStep) else names),
        told_by=told_by,
        kept=source or hop is not None,
        reads=() if hop is None else tuple(sorted(hop.inputs)),
    )


def _kind(node: job_model.Anything) -> str:
    match node:
        case job_model.SavedSource():
            return source_identity.kind_of(node.given)
        case job_model.JournalSource():
            return "journals"
        case job_model.ParquetSink():
            return "sink_parquet"
        case job_model.JournalSink():
            return "sink_journal"
        case job_model.FunctionSink():
            return "sink"
        case job_model.KeyBy():
            return "key_by"
        case job_model.Map():
            return "map"
        case job_model.FilterStep():
            return "filter"
        case job_model.Select():
            return "select"
        case job_model.UnionStep():
            return "union"
        case _:
            raise AssertionError(f"{type(node).__name__} is no part of a job")


def _told_by(node: job_model.Anything) -> dict[str, str]:
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
        case job_model.KeyBy():
            return {"keys": ", ".join(node.keys)}
        case job_model.ParquetSink():
            return {"path": node.path}
        case job_model.JournalSink():
            return {"journal": node.journal}
        case job_model.UnionStep():
            return {}


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
