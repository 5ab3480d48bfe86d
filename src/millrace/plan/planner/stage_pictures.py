"""Shows the stages of a query: as text, and as a picture for a browser or a notebook. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import Final

from millrace.plan.nodes.node import Node
from millrace.plan.nodes.scan import Scan
from millrace.plan.nodes.shared_parts.made_once import MadeOnce
from millrace.plan.planner.stages import Stage
from millrace.text import human_bytes

ONE_TASK: Final = (
    "one task does all of this query: nothing of it can be resumed before the task ends"
)
NOTHING: Final[Mapping[int, Sequence[str]]] = MappingProxyType({})
_LINE_PX: Final = 17
_LETTER_PX: Final = 7.3
_PADDING_PX: Final = 12
_GAP_PX: Final = 46
_LETTERS_MAX: Final = 76
_COLOURS: Final = {"native": "#eef4fb", "spark": "#fdf0e2", "reused": "#e9f6ec"}
_ARROW: Final = (
    '<defs><marker id="mr-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
    'markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#567"/></marker></defs>'
)
_STYLE: Final = "font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12px"


def explain(stages: Sequence[Stage]) -> str:
    """The stages as text: placement, reason and operators of each."""
    lines: list[str] = []
    for stage in stages:
        lines.append(f"stage {stage.number} -> {_goes(stage)}")
        lines += ["  " * depth + node.describe() for depth, node in _operators(stage.root, 1)]
    return "\n".join(lines)


def explain_fully(
    stages: Sequence[Stage],
    remarks: Mapping[int, str],
    measures: Mapping[int, Sequence[str]] = NOTHING,
) -> str:
    """As `explain`, with a remark and measures of each stage, sizes of files, and a last word."""
    lines: list[str] = []
    for stage in stages:
        lines.append(f"stage {stage.number} -> {_goes(stage)}")
        lines += [f"  ({remarks[stage.number]})"] if stage.number in remarks else []
        lines += ["  " * depth + _sized(node) for depth, node in _operators(stage.root, 1)]
        lines += [f"  {line}" for line in measures.get(stage.number, ())]
    lines += [f"({ONE_TASK})"] if _is_one_task(stages) else []
    return "\n".join(lines)


def explain_html(
    stages: Sequence[Stage],
    remarks: Mapping[int, str],
    measures: Mapping[int, Sequence[str]] = NOTHING,
) -> str:
    """The stages as a picture: a box for each, with an arrow to each stage that reads it."""
    boxes = [
        _Box.of(stage, remarks.get(stage.number, ""), measures.get(stage.number, ()))
        for stage in stages
    ]
    placed = _placed(stages, boxes)
    width = max(x + box.width for box, (x, _) in zip(boxes, placed, strict=True)) + _PADDING_PX
    height = max(y + box.height for box, (_, y) in zip(boxes, placed, strict=True)) + _PADDING_PX
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{_STYLE}" role="img">'
    parts = [opening, _ARROW]
    for stage, box, (x, y) in zip(stages, boxes, placed, strict=True):
        parts.append(box.svg(x, y))
        for number in stage.reads:
            if number < 0:
                continue
            from_x, from_y = placed[number]
            source = boxes[number]
            parts.append(
                f'<line x1="{from_x + source.width / 2:.0f}" y1="{from_y + source.height:.0f}" '
                f'x2="{x + box.width / 2:.0f}" y2="{y:.0f}" stroke="#567" '
                'marker-end="url(#mr-arrow)"/>'
            )
    note = f'<p style="{_STYLE}">{ONE_TASK}</p>' if _is_one_task(stages) else ""
    return f"<div>{''.join(parts)}</svg>{note}</div>"


@dataclass(frozen=True, slots=True)
class _Box:
    """A stage as a box of lines."""

    title: str
    lines: tuple[str, ...]
    colour: str

    @classmethod
    def of(cls, stage: Stage, remark: str, measures: Sequence[str]) -> _Box:
        operators = [
            _clipped("\u00a0" * (2 * (depth - 1)) + _sized(node))
            for depth, node in _operators(stage.root, 1)
        ]
        kind = "reused" if remark.startswith("all of") else "native"
        if any(text.lstrip("\u00a0").startswith("on Spark") for text in operators):
            kind = "spark"
        measured = [_clipped(line.replace("  ", "\u00a0\u00a0")) for line in measures]
        lines = [*([_clipped(remark)] if remark else []), *operators, *measured]
        return cls(
            _clipped(f"stage {stage.number} -> {_goes(stage)}"), tuple(lines), _COLOURS[kind]
        )

    @property
    def width(self) -> float:
        return max(map(len, (self.title, *self.lines))) * _LETTER_PX + 2 * _PADDING_PX

    @property
    def height(self) -> float:
        return (1 + len(self.lines)) * _LINE_PX + 2 * _PADDING_PX

    def svg(self, x: float, y: float) -> str:
        """The box with its corner at a position."""
        rows = []
        for number, text in enumerate((self.title, *self.lines)):
            baseline = y + _PADDING_PX + _LINE_PX * (number + 0.8)
            weight = "normal" if number else "bold"
            start = f'<text x="{x + _PADDING_PX:.0f}" y="{baseline:.0f}" font-weight="{weight}">'
            rows.append(f"{start}{escape(text)}</text>")
        frame = (
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{self.width:.0f}" height="{self.height:.0f}" '
            f'rx="6" fill="{self.colour}" stroke="#9ab"/>'
        )
        return frame + "".join(rows)


def _placed(stages: Sequence[Stage], boxes: Sequence[_Box]) -> list[tuple[float, float]]:
    """The corner of each box: a stage is below all that it reads."""
    level: dict[int, int] = {}
    for stage in stages:
        level[stage.number] = 1 + max((level[n] for n in stage.reads if n >= 0), default=-1)
    tops: dict[int, float] = {}
    top = float(_PADDING_PX)
    for row in range(max(level.values()) + 1):
        tops[row] = top
        tallest = max(
            box.height for s, box in zip(stages, boxes, strict=True) if level[s.number] == row
        )
        top += tallest + _GAP_PX
    at: dict[int, float] = dict.fromkeys(tops, float(_PADDING_PX))
    corners = []
    for stage, box in zip(stages, boxes, strict=True):
        row = level[stage.number]
        corners.append((at[row], tops[row]))
        at[row] += box.width + _GAP_PX
    return corners


def _goes(stage: Stage) -> str:
    return stage.why if stage.placement is None else f"{stage.placement}: {stage.why}"


def _operators(
    node: Node, depth: int, shared: set[int] | None = None
) -> Iterator[tuple[int, Node]]:
    """The operators of a tree, each with its depth; those of shared rows once."""
    shown = set() if shared is None else shared
    yield depth, node
    if isinstance(node, MadeOnce):
        if id(node) in shown:
            return
        shown.add(id(node))
    for child in node.children:
        yield from _operators(child, depth + 1, shown)


def _sized(node: Node) -> str:
    """An operator in a line; a scan with the bytes of its columns."""
    if not isinstance(node, Scan):
        return node.describe()
    return f"{node.describe()}, {human_bytes(node.source.bytes_of(node.columns))}"


def _is_one_task(stages: Sequence[Stage]) -> bool:
    return len(stages) == 1 and stages[0].alone


def _clipped(text: str) -> str:
    return text if len(text) <= _LETTERS_MAX else text[: _LETTERS_MAX - 3] + "..."
