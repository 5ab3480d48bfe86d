"""What a job looks like without its functions: recorded when a run starts. Pure.

Whoever looks at a job later, from another process and without its definition, knows from this which
journals its steps read and write, and how the picture of it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from millrace.journal.core.journal_names import under
from millrace.pipeline.core.hops import ROOT, Hop, output_prefix, step_root
from millrace.pipeline.core.job_model import FunctionSink, JournalSink, KeyBy, Map, ParquetSink

Kind = Literal["source", "journal", "map", "key_by", "pass", "parquet", "append", "function"]
SINKS: tuple[Kind, ...] = ("parquet", "append", "function")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineNode:
    """A source, or a hop, of a job."""

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    """Names of the parts that feed it."""
    prefixes: tuple[str, ...] = ()
    """Of the journals that it reads."""
    single: tuple[str, ...] = ()
    """Those of them that name one journal, and none below it."""
    fused: tuple[str, ...] = ()
    """Cheap steps that run inside it, in front of it."""
    expensive: bool = False
    depth: int = 0
    target: str = ""
    """Of a sink: the folder or the journal that it fills."""
    max_calls: int | None = None

    def reads(self, journal: str) -> bool:
        """Whether it reads this journal."""
        if journal in self.single:
            return True
        return any(under(prefix, journal) for prefix in self.prefixes if prefix not in self.single)


@dataclass(frozen=True, slots=True)
class Outline:
    """A job's parts, what feeds others first."""

    job: str
    parts: tuple[OutlineNode, ...]

    @property
    def hops(self) -> tuple[OutlineNode, ...]:
        """The parts that do work."""
        return tuple(part for part in self.parts if part.kind not in ("source", "journal"))

    def part(self, name: str) -> OutlineNode | None:
        """The part of this name."""
        return next((part for part in self.parts if part.name == name), None)

    def hop_of(self, step: str) -> OutlineNode | None:
        """The part that a step runs in, itself or fused into another."""
        return self.part(step) or next((p for p in self.parts if step in p.fused), None)

    def downstream(self, name: str) -> tuple[OutlineNode, ...]:
        """A part and all that depend on it, in order."""
        reached = {name}
        for part in self.parts:
            if reached & set(part.inputs):
                reached.add(part.name)
        return tuple(part for part in self.parts if part.name in reached)

    def readers(self, name: str) -> tuple[OutlineNode, ...]:
        """The parts that read what one writes."""
        return tuple(part for part in self.parts if name in part.inputs)

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        return {"job": self.job, "parts": [asdict(part) for part in self.parts]}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Outline:
        """From a document."""
        parts = []
        for part in document["parts"]:
            read: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in part.items()
            }
            parts.append(OutlineNode(**read))
        return cls(document["job"], tuple(parts))


def outline_of(job: str, hops: Sequence[Hop], sources: Sequence[str] = ()) -> Outline:
    """The outline of hops; sources are told by what hops read, or given."""
    ordered = sorted(hops, key=lambda hop: (hop.depth, hop.name))
    named = {hop.name for hop in ordered}
    feeding = [_feeder(job, prefix) for hop in ordered for prefix in hop.inputs]
    first = dict.fromkeys([*sources, *(name for name in feeding if name not in named)])
    own = {_feeder(job, prefix) for hop in ordered for prefix in hop.inputs if _own(job, prefix)}
    begin = [
        OutlineNode(name=name, kind="source" if name in own or name in sources else "journal")
        for name in first
    ]
    return Outline(job, (*begin, *(_part(job, hop) for hop in ordered)))


def output_of(outline: Outline, part: OutlineNode) -> str | None:
    """The prefix of the journals that a part fills; None for a sink."""
    if part.kind in SINKS:
        return None
    return part.name if part.kind == "journal" else output_prefix(outline.job, part.name)


def group_of(outline: Outline, part: OutlineNode) -> str:
    """The group in which a part has committed what it read."""
    return step_root(outline.job, part.name)


def _part(job: str, hop: Hop) -> OutlineNode:
    steps = [step.name for step in hop.steps]
    return OutlineNode(
        name=hop.name,
        kind=_kind(hop),
        inputs=tuple(_feeder(job, prefix) for prefix in hop.inputs),
        prefixes=hop.inputs,
        single=hop.single,
        fused=tuple(name for name in steps if name != hop.name),
        expensive=hop.expensive is not None,
        depth=hop.depth,
        target=_target(hop),
        max_calls=hop.options.max_calls,
    )


def _kind(hop: Hop) -> Kind:
    match hop.sink:
        case ParquetSink():
            return "parquet"
        case JournalSink():
            return "append"
        case FunctionSink():
            return "function"
        case None:
            last = hop.steps[-1] if hop.steps else None
            if isinstance(last, KeyBy):
                return "key_by"
            return "map" if isinstance(last, Map) else "pass"


def _target(hop: Hop) -> str:
    match hop.sink:
        case ParquetSink():
            return hop.sink.path
        case JournalSink():
            return hop.sink.journal
        case _:
            return ""


def _own(job: str, prefix: str) -> bool:
    return prefix.startswith(f"{ROOT}/{job}/") and prefix.endswith("/out")


def _feeder(job: str, prefix: str) -> str:
    """The name of what fills journals: a part of the job, or a journal of the user's."""
    if not _own(job, prefix):
        return prefix
    return prefix.removeprefix(f"{ROOT}/{job}/").removesuffix("/out")
