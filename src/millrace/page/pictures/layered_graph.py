"""A graph in layers, from what feeds to what is fed: stages of a run, steps of a job. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from markupsafe import Markup

from millrace.page.pictures.svg import CHAR, cut, picture, text

_WIDTH, _GAP_X, _GAP_Y, _LINE, _PAD = 196, 104, 22, 17, 13
_EDGE_CHARS: Final = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """A box: its name, some lines below, and where a click leads."""

    id: str
    name: str
    lines: tuple[str, ...] = ()
    kind: str = ""
    href: str | None = None


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """From one box to another, with what passes."""

    start: str
    end: str
    label: str = ""


@dataclass(slots=True)
class _Placed:
    node: GraphNode
    x: float
    y: float
    height: float
    ins: list[str] = field(default_factory=list)


def layered_graph(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge], label: str) -> Markup:
    """The picture, from left to right. Edges to boxes that are not there are left out."""
    known = {node.id for node in nodes}
    kept = [edge for edge in edges if edge.start in known and edge.end in known]
    placed = _place(nodes, kept)
    width = max((p.x + _WIDTH for p in placed.values()), default=0) + 2
    height = max((p.y + p.height for p in placed.values()), default=0) + 4
    out = Counter(edge.start for edge in kept)
    parts = [_edge(placed[e.start], placed[e.end], e.label, out[e.start]) for e in kept]
    parts += [_box(p) for p in placed.values()]
    return picture(width, height, parts, label, "group")


def _place(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> dict[str, _Placed]:
    depth = _depths(nodes, edges)
    columns: dict[int, list[GraphNode]] = {}
    for node in nodes:
        columns.setdefault(depth[node.id], []).append(node)
    heights = {d: sum(_height(n) + _GAP_Y for n in some) - _GAP_Y for d, some in columns.items()}
    tallest = max(heights.values(), default=0)
    placed = {}
    for number, some in columns.items():
        y = 2 + (tallest - heights[number]) / 2
        for node in some:
            placed[node.id] = _Placed(node, 1 + number * (_WIDTH + _GAP_X), y, _height(node))
            y += _height(node) + _GAP_Y
    return placed


def _depths(nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> dict[str, int]:
    depth = {node.id: 0 for node in nodes}
    for _ in nodes:
        changed = False
        for edge in edges:
            if depth[edge.end] <= depth[edge.start] < len(nodes):
                depth[edge.end] = depth[edge.start] + 1
                changed = True
        if not changed:
            break
    return depth


def _height(node: GraphNode) -> float:
    return 2 * _PAD + _LINE * (1 + len(node.lines)) - 3


def _box(placed: _Placed) -> str:
    node, x, y = placed.node, placed.x, placed.y
    room = int((_WIDTH - 2 * _PAD) / CHAR)
    at = f'x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{placed.height:.1f}"'
    parts = [f'<rect class="box {escape(node.kind)}" {at} rx="8"/>']
    parts.append(text(x + _PAD, y + _PAD + 11, cut(node.name, room), "name", title=node.name))
    for number, words in enumerate(node.lines, start=1):
        where = y + _PAD + 11 + number * _LINE
        parts.append(text(x + _PAD, where, cut(words, room + 2), "soft", title=words))
    inside = "".join(parts)
    return f'<a href="{escape(node.href)}">{inside}</a>' if node.href else f"<g>{inside}</g>"


def _edge(start: _Placed, end: _Placed, label: str, siblings: int) -> str:
    x, y = start.x + _WIDTH, start.y + start.height / 2
    to_x, to_y = end.x, end.y + end.height / 2
    middle = (x + to_x) / 2
    curve = f"C{middle:.1f},{y:.1f} {middle:.1f},{to_y:.1f} {to_x - 6:.1f},{to_y:.1f}"
    tip = f"{to_x:.1f},{to_y:.1f} {to_x - 7:.1f},{to_y - 3.5:.1f} {to_x - 7:.1f},{to_y + 3.5:.1f}"
    drawn = (
        f'<path class="edge" d="M{x:.1f},{y:.1f} {curve}"/><polygon class="tip" points="{tip}"/>'
    )
    words = cut(label, _EDGE_CHARS)
    # Where several edges leave one box, their labels stand at the other ends.
    if siblings > 1:
        return drawn + text(to_x - 10, to_y - 7, words, "faint", "end")
    if abs(y - to_y) < 1:
        return drawn + text(middle, y - 6, words, "faint", "middle")
    return drawn + text(x + 8, y - 6, words, "faint")
