"""The record of a job when a run starts: its sources, steps and sinks, no functions. Pure.

Explain, status, the report page, resets and the detection of changes all read this one form. So a
process that has not the job's definition knows which journals its steps read and write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from millrace.journal.core.journal_names import under
from millrace.pipeline.core.hops import is_retried, output_prefix, step_root

RECORDED: Final = "recorded"
"""The field of an event that holds a job's record."""
SOURCES: Final = ("DataFrame", "dataset", "files", "journals", "source")
TABLE_SINKS: Final = ("sink_delta", "sink_iceberg")
APPENDING_SINKS: Final = {
    "sink_journal": "journal",
    **dict.fromkeys(TABLE_SINKS, "table"),
    "sink_postgres": "table",
    "sink_kafka": "topic",
}
"""Sinks whose rows a reset does not take back, and what they fill."""
SINKS: Final = ("sink_parquet", *APPENDING_SINKS, "sink")
STATE_STEPS: Final = ("aggregate", "latest", "dedupe", "stateful", "window", "join", "lookup")
"""Steps with state for each key."""
_OLD_KINDS: Final = {
    "journal": "journals",
    "parquet": "sink_parquet",
    "append": "sink_journal",
    "function": "sink",
}
"""Kinds in the outlines that earlier versions recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """A source, step or sink of a job."""

    name: str
    kind: str
    """A source: DataFrame, dataset, files or journals. Else the method that made it."""
    inputs: tuple[str, ...] = ()
    """Names of the parts that feed it directly."""
    is_kept: bool = True
    """Whether its rows are kept in journals, or it is a sink: it has a hop of its own."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """The values that decide its results, by a word that the user knows."""
    columns: tuple[str, ...] = ()
    journals: tuple[str, ...] = ()
    """The names, or prefixes, of the journals that a journal source reads."""
    prefixes: tuple[str, ...] = ()
    """The prefixes of the journals that its hop reads."""
    single: tuple[str, ...] = ()
    """Prefixes that name exactly one journal, and no journals below it."""
    fused: tuple[str, ...] = ()
    """Steps that run in its hop, in front of it."""
    expensive: bool = False
    depth: int = 0
    target: str = ""
    """The folder or the journal that a sink fills."""
    partitions: int = 0
    """The number of journals that its rows are spread over."""
    finished: bool = False
    """Of a source: whether no rows will come to it any more. It may differ from run to run."""
    function: str = ""
    """The name of the function that it calls."""
    workers: int | None = None
    rate: float | None = None
    max_calls: int | None = None
    paid: Mapping[str, float] = field(default_factory=dict)
    """Its other limits and its budget, by name."""
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_source(self) -> bool:
        """Whether it reads nothing of the job."""
        return self.kind in SOURCES

    @property
    def is_sink(self) -> bool:
        """Whether no step reads its rows."""
        return self.kind in SINKS

    def reads(self, journal: str) -> bool:
        """Whether its hop reads this journal."""
        if journal in self.single or is_retried(journal, self.name):
            return True
        return any(under(prefix, journal) for prefix in self.prefixes if prefix not in self.single)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job's parts; each part comes behind the parts that feed it."""

    job: str
    parts: tuple[JobPart, ...] = ()

    @property
    def hops(self) -> tuple[JobPart, ...]:
        """The parts that do work, by their distance from the sources."""
        kept = [part for part in self.parts if part.is_kept and not part.is_source]
        return tuple(sorted(kept, key=lambda part: (part.depth, part.name)))

    @property
    def kept(self) -> tuple[JobPart, ...]:
        """Sources, then hops."""
        return (*(part for part in self.parts if part.is_source), *self.hops)

    def without_fused(self) -> JobRecord:
        """The same job with its kept parts alone, each fed by kept parts."""
        parts = (replace(part, inputs=self.feeders(part.name)) for part in self.kept)
        return JobRecord(self.job, tuple(parts))

    def part(self, name: str) -> JobPart | None:
        """The part of this name."""
        return next((part for part in self.parts if part.name == name), None)

    def hop_of(self, step: str) -> JobPart | None:
        """The kept part that a step runs in, itself or fused into another."""
        own = self.part(step)
        if own is not None and own.is_kept:
            return own
        return next((part for part in self.hops if step in part.fused), None)

    def feeders(self, name: str) -> tuple[str, ...]:
        """Names of the kept parts whose rows a part reads, through steps that are fused."""
        part = self.part(name)
        names: list[str] = []
        for given in () if part is None else part.inputs:
            before = self.part(given)
            is_fused = before is not None and not before.is_kept
            names += self.feeders(given) if is_fused else [given]
        return tuple(dict.fromkeys(names))

    def downstream(self, name: str) -> tuple[JobPart, ...]:
        """A kept part and all kept parts that depend on it, in order."""
        reached = {name}
        for part in self.kept:
            if reached & set(self.feeders(part.name)):
                reached.add(part.name)
        return tuple(part for part in self.kept if part.name in reached)

    def readers(self, name: str) -> tuple[JobPart, ...]:
        """The kept parts that read the rows of a part."""
        return tuple(part for part in self.hops if name in self.feeders(part.name))

    def before(self, name: str) -> set[str]:
        """Names of all parts that a part depends on."""
        reached = {name}
        for part in reversed(self.parts):
            if part.name in reached:
                reached |= set(part.inputs)
        return reached - {name}

    def output_of(self, part: JobPart) -> str | None:
        """The prefix of the journals that a part fills; None for a sink, and for journals."""
        is_own = not part.is_sink and part.kind != "journals"
        return output_prefix(self.job, part.name) if is_own else None

    def group_of(self, part: JobPart) -> str:
        """The consumer group in which a part commits what it has read."""
        return step_root(self.job, part.name)

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON document."""
        return {"job": self.job, "parts": [asdict(part) for part in self.parts]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> JobRecord:
        """The record of a JSON document."""
        return cls(document["job"], tuple(JobPart(**_fields(part)) for part in document["parts"]))

    @classmethod
    def from_event(cls, detail: Mapping[str, Any]) -> JobRecord:
        """The record of a start or reset event; earlier versions recorded two documents there."""
        if RECORDED in detail:
            return cls.from_json(detail[RECORDED])
        outline = _from_outline(detail["outline"])
        if "described" not in detail:
            return outline
        hops = {part.name: part for part in outline.parts}
        parts = (_from_description(part, hops) for part in detail["described"]["parts"])
        return cls(outline.job, tuple(parts))


def has_identities(detail: Mapping[str, Any]) -> bool:
    """Whether the event of a start holds the identity of each part."""
    return RECORDED in detail or "described" in detail


def _fields(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in part.items()}


def _from_outline(document: Mapping[str, Any]) -> JobRecord:
    """The record of an earlier version: sources and hops alone, journals by their own names."""
    parts = []
    for fields in map(_fields, document["parts"]):
        kind = _OLD_KINDS.get(fields["kind"], fields["kind"])
        journals = (fields["name"],) if kind == "journals" else ()
        parts.append(JobPart(**fields | {"kind": kind, "journals": journals}))
    return JobRecord(document["job"], tuple(parts))


def _from_description(part: Mapping[str, Any], hops: Mapping[str, JobPart]) -> JobPart:
    """A part of an earlier version: its identity, beside an outline of the hops."""
    hop = hops.get(part["name"]) or JobPart(name=part["name"], kind=part["kind"])
    identity = dict(part["told_by"])
    journals = identity.get("journals", "").split(", ") if part["kind"] == "journals" else []
    return replace(
        hop,
        kind=part["kind"],
        inputs=tuple(part["inputs"]),
        is_kept=part["kept"],
        identity=identity,
        journals=tuple(journals),
        prefixes=hop.prefixes or tuple(part["reads"]),
    )
