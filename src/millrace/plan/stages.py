"""Cuts a plan with exchanges into stages: what one kind of task runs between two of them.

Invariant: every stage comes after those it reads, and the same plan is always cut alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.plan.nodes import (
    Aggregate,
    Exchange,
    Filter,
    FinalAggregate,
    Join,
    Node,
    PartialAggregate,
    Placement,
    Project,
    ReadStage,
    Scan,
    ToOne,
    children,
)
from millrace.text import counted


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A tree over scans and earlier stages, and where its rows go (None: they are the result).

    A stage that is `alone` is the whole plan with no exchange: one task must read all its files.
    """

    number: int
    root: Node
    placement: Placement | None
    alone: bool

    @property
    def leaves(self) -> tuple[Scan | ReadStage, ...]:
        """Where its rows come from, left to right."""
        return tuple(leaves(self.root))


def cut(plan: Node) -> list[Stage]:
    """The stages of a plan, each after those it reads; the last one makes the result."""
    stages: list[Stage] = []
    root = _cut(plan, stages)
    stages.append(Stage(len(stages), root, None, alone=not stages and needs_all_rows(root)))
    return stages


def needs_all_rows(node: Node) -> bool:
    """Whether some operator here looks at more than one row at a time."""
    if isinstance(node, Aggregate | Join):
        return True
    return any(needs_all_rows(child) for child in children(node))


def leaves(node: Node) -> list[Scan | ReadStage]:
    """The scans and stage reads below a node, left to right."""
    if isinstance(node, Scan | ReadStage):
        return [node]
    return [leaf for child in children(node) for leaf in leaves(child)]


def explain(stages: list[Stage]) -> str:
    """The stages as text: a tree each, and where its rows go and why."""
    lines: list[str] = []
    for stage in stages:
        goes = "the result" if stage.placement is None else str(stage.placement)
        lines.append(f"stage {stage.number} -> {goes}")
        _draw(stage.root, 1, lines)
    return "\n".join(lines)


def describe(node: Node) -> str:
    """One node in a line."""
    match node:
        case Scan(source=source, columns=columns):
            files = counted(len(source.shapes), "file")
            return f"scan {source.format}, {files}, columns {', '.join(columns)}"
        case Project(columns=columns):
            return "project " + ", ".join(
                name if e.text == name else f"{e.text} as {name}" for name, e in columns
            )
        case Filter(condition=condition):
            return f"filter {condition.text}"
        case Aggregate(keys=keys, aggregates=aggregates):
            return _grouped("aggregate", keys, [a.text for a in aggregates])
        case PartialAggregate(keys=keys, aggregates=aggregates):
            return _grouped("partial aggregate", keys, [a.text for a in aggregates])
        case FinalAggregate(whole=whole):
            return _grouped("final aggregate", whole.keys, [a.text for a in whole.aggregates])
        case Join(left_keys=left, right_keys=right, how=how):
            pairs = ", ".join(f"{one} = {two}" for one, two in zip(left, right, strict=True))
            return f"{how} join on {pairs}"
        case ReadStage(stage=stage, placement=ToOne(broadcast=True)):
            return f"read all of stage {stage}"
        case ReadStage(stage=stage):
            return f"read stage {stage}"
        case Exchange(placement=placement, why=why):
            return f"exchange {placement}: {why}"


def _grouped(what: str, keys: tuple[str, ...], texts: list[str]) -> str:
    by = f" by {', '.join(keys)}" if keys else ""
    return f"{what}{by}: {', '.join(texts)}" if texts else f"{what}{by}"


def _draw(node: Node, depth: int, lines: list[str]) -> None:
    lines.append("  " * depth + describe(node))
    for child in children(node):
        _draw(child, depth + 1, lines)


def _cut(node: Node, stages: list[Stage]) -> Node:
    match node:
        case Scan() | ReadStage():
            return node
        case Exchange():
            root = _cut(node.child, stages)
            stage = Stage(len(stages), root, node.placement, alone=False)
            stages.append(stage)
            return ReadStage(stage.number, node.schema, node.placement)
        case Join():
            left = _cut(node.left, stages)
            return replace(node, left=left, right=_cut(node.right, stages))
        case Project() | Filter() | Aggregate() | PartialAggregate() | FinalAggregate():
            return replace(node, child=_cut(node.child, stages))
