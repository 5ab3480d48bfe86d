"""Draws docs/pictures/architecture.svg from the imports of src/millrace.

    scripts/architecture.py            writes the picture
    scripts/architecture.py --check    fails if the picture is not what the code says

A box is a room: a folder of the package, or one of the modules of its public face. A room stands
above all rooms that it imports. An arrow leads to an imported room; arrows that follow from others
are left out.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "millrace"
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
BASE = "base"
"""The small modules that all rooms use."""
FACE = dict.fromkeys(("workspace", "spark_session"), "workspace")
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 184, 84, 34, 56, 24
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
  font-family="system-ui, sans-serif" role="img">
<title>The rooms of Millrace and what each imports</title>
<style>
.box {{ fill: #eef4fb; stroke: #3a6ea5 }}
.name {{ font-weight: 600; font-size: 15px; fill: #12263a }}
.size {{ font-size: 12px; fill: #44586c }}
.arrow {{ stroke: #8aa4bf; fill: none; stroke-width: 1.4 }}
@media (prefers-color-scheme: dark) {{
  .box {{ fill: #1c2b3a; stroke: #7fb0e0 }}
  .name {{ fill: #eaf2fa }}
  .size {{ fill: #b5c6d8 }}
}}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"
  orient="auto"><path d="M0 0 8 4 0 8z" fill="#8aa4bf"/></marker></defs>"""

Graph = Mapping[str, frozenset[str]]


def room_of(parts: tuple[str, ...]) -> str:
    """The room of a module, by its path below the package."""
    if len(parts) > 1:
        return parts[0]
    return FACE.get(parts[0], BASE)


def imported_rooms(path: Path) -> set[str]:
    """The rooms that a module imports, also when only a type checker does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    rooms = set()
    for name in names:
        package, *parts = name.split(".")
        if package == "millrace" and parts:
            is_folder = (SRC / parts[0]).is_dir()
            is_module = (SRC / f"{parts[0]}.py").exists()
            if is_folder or is_module:
                rooms.add(room_of((parts[0], "") if is_folder else (parts[0],)))
    return rooms


def rooms() -> Graph:
    """Which rooms each room imports."""
    graph: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        if parts == ("__init__",):
            continue
        room = room_of(parts)
        graph[room] |= imported_rooms(path) - {room}
    return {room: frozenset(others) for room, others in graph.items()}


def folders_in(room: str) -> list[str]:
    """The folders of a room, in lines that fit a box."""
    names = sorted(path.parent.name for path in (SRC / room).glob("*/__init__.py"))
    return textwrap.wrap(", ".join(names), 26) if names else []


def reached(graph: Graph, room: str) -> frozenset[str]:
    """All rooms that a room imports, directly or through others."""
    found: set[str] = set()
    waiting = list(graph[room])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += graph[other]
    return frozenset(found)


def reduced(graph: Graph) -> Graph:
    """The same graph without the imports that follow from others."""
    below = {room: reached(graph, room) for room in graph}
    return {
        room: frozenset(
            other
            for other in others
            if not any(other in below[between] for between in others - {other})
        )
        for room, others in graph.items()
    }


def levels(graph: Graph) -> list[list[str]]:
    """Rooms in rows: each above everything that it imports. The last row imports nothing."""
    level: dict[str, int] = {}
    while len(level) < len(graph):
        ready = [
            room for room in sorted(graph) if room not in level and graph[room] <= level.keys()
        ]
        if not ready:
            raise SystemExit(f"imports go in a circle: {sorted(graph.keys() - level.keys())}")
        for room in ready:
            level[room] = 1 + max((level[other] for other in graph[room]), default=-1)
    rows: list[list[str]] = [[] for _ in range(1 + max(level.values()))]
    for room, number in sorted(level.items()):
        rows[number].append(room)
    return rows[::-1]


def picture() -> str:
    """The picture as SVG."""
    graph = rooms()
    rows = levels(graph)
    widest = max(map(len, rows))
    width = 2 * MARGIN + widest * WIDTH + (widest - 1) * GAP_X
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * GAP_Y
    at: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        taken = len(row) * WIDTH + (len(row) - 1) * GAP_X
        left = (width - taken) / 2
        for place, room in enumerate(row):
            at[room] = (left + place * (WIDTH + GAP_X), MARGIN + number * (HEIGHT + GAP_Y))
    out = [HEAD.format(width=width, height=height)]
    for room, others in sorted(reduced(graph).items()):
        x, y = at[room]
        for other in sorted(others):
            to_x, to_y = at[other]
            start = (x + WIDTH / 2, y + HEIGHT)
            end = (to_x + WIDTH / 2, to_y)
            middle = (start[1] + end[1]) / 2
            out.append(
                f'<path class="arrow" marker-end="url(#head)" d="M{start[0]:.0f} {start[1]:.0f} '
                f"C{start[0]:.0f} {middle:.0f} {end[0]:.0f} {middle:.0f} "
                f'{end[0]:.0f} {end[1] - 2:.0f}"/>'
            )
    for room, (x, y) in sorted(at.items()):
        middle_x = x + WIDTH / 2
        out.append(
            f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
        )
        texts = [("name", room), *(("size", line) for line in folders_in(room))]
        first = y + HEIGHT / 2 + 5 - 8 * (len(texts) - 1)
        for number, (kind, text) in enumerate(texts):
            out.append(
                f'<text class="{kind}" x="{middle_x:.0f}" y="{first + 17 * number:.0f}" '
                f'text-anchor="middle">{escape(text)}</text>'
            )
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    """Write the picture, or compare it with the one that is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    made = picture()
    if not parser.parse_args().check:
        PICTURE.write_text(made, encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != made:
        sys.exit(f"{PICTURE} is not what the code says\n  to fix: make architecture")


if __name__ == "__main__":
    main()
