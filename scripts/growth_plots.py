"""Draws how the time of TPC-H queries grows with the data, for each engine of one run.

    .venv/bin/python scripts/growth_plots.py [--lines benchmarks/.data/growth.jsonl]

The lines are those that `benchmarks/tpch.py --results` keeps, one for each query and scale; `make
bench-plots` measures what is missing and draws. A picture has CPU seconds, which other work on the
machine moves least, and the same in seconds of the clock. A scale counts if all of its queries were
measured; an engine has a curve if it answered all of them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LINES: Final = ROOT / "benchmarks" / ".data" / "growth.jsonl"
PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 60, 110, 24, 44
ENGINES: Final = {
    "millrace": ("Millrace", "#1b6ca8"),
    "peer": ("Spark", "#c8791b"),
    "duckdb": ("DuckDB", "#2a9d5c"),
    "sail": ("Sail", "#8a4fbf"),
}
KINDS: Final = {"cpu_s": "CPU seconds", "s": "seconds"}

Curves = dict[str, dict[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """Where values lie between two points, so that a doubling is as long everywhere."""

    least: float
    most: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """The place of a value."""
        span = math.log(self.most / self.least) or 1.0
        return self.begin + (self.end - self.begin) * math.log(value / self.least) / span


def curves(lines: Iterable[Mapping[str, Any]], kind: str) -> Curves:
    """For each engine its sum over the queries, by scale."""
    by_scale: defaultdict[float, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for line in lines:
        scale, query = str(line["case"]).split(" ", 1)
        by_scale[float(scale.removeprefix("sf"))][query] = line
    queries = set().union(*(measured.keys() for measured in by_scale.values()))
    whole = {scale: list(one.values()) for scale, one in by_scale.items() if set(one) == queries}
    found: Curves = {}
    for engine in ENGINES:
        field = f"{engine}_{kind}"
        sums = {
            scale: sum(float(line[field]) for line in measured)
            for scale, measured in sorted(whole.items())
            if all(field in line for line in measured)
        }
        if len(sums) > 1:
            found[engine] = sums
    return found


def picture(drawn: Curves, title: str) -> str:
    """A line for each engine, over the scales."""
    scales = sorted({scale for curve in drawn.values() for scale in curve})
    values = [value for curve in drawn.values() for value in curve.values()]
    across = Axis(scales[0], scales[-1], LEFT, WIDTH - RIGHT)
    up = Axis(min(values), max(values), HEIGHT - BOTTOM, TOP)
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(8, 14, title),
    ]
    for value in _steps(min(values), max(values)):
        y = up.at(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(_text(LEFT - 6, y + 4, f"{value:g}", 'text-anchor="end"'))
    for scale in scales:
        label = f"{scale / scales[0]:g}x"
        parts.append(_text(across.at(scale), HEIGHT - BOTTOM + 16, label, 'text-anchor="middle"'))
    parts.append(_text(LEFT, HEIGHT - 8, f"1x: TPC-H at scale factor {scales[0]:g}"))
    heights = _apart([up.at(curve[max(curve)]) for curve in drawn.values()])
    for (engine, curve), height in zip(drawn.items(), heights, strict=True):
        name, colour = ENGINES[engine]
        points = [(across.at(scale), up.at(value)) for scale, value in curve.items()]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        last = curve[max(curve)]
        parts.append(_text(points[-1][0] + 8, height + 4, f"{name} {last:.3g}", f'fill="{colour}"'))
    return "\n".join([*parts, "</svg>", ""])


def table(drawn: Curves) -> list[str]:
    """The same as rows of Markdown."""
    scales = sorted({scale for curve in drawn.values() for scale in curve})
    rows = ["| scale | " + " | ".join(ENGINES[engine][0] for engine in drawn) + " |"]
    rows.append("|---" * (len(drawn) + 1) + "|")
    for scale in scales:
        cells = [f"{curve[scale]:.2f}" if scale in curve else "" for curve in drawn.values()]
        rows.append(f"| {scale:g} | " + " | ".join(cells) + " |")
    return rows


def _steps(least: float, most: float) -> list[float]:
    """1, 2, 5, 10 and so on, as far as they lie between."""
    begin, end = math.floor(math.log10(least)), math.ceil(math.log10(most))
    steps = [one * 10.0**power for power in range(begin, end + 1) for one in (1, 2, 5)]
    return [step for step in steps if least <= step <= most]


def _apart(heights: Sequence[float], least: float = 13) -> list[float]:
    """Heights of labels, moved so that none covers another."""
    placed: dict[int, float] = {}
    below = -math.inf
    for number in sorted(range(len(heights)), key=lambda n: heights[n]):
        below = placed[number] = max(heights[number], below + least)
    return [placed[number] for number in range(len(heights))]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{text}</text>'


def main() -> None:
    """Write the pictures, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=Path, default=LINES)
    path = parser.parse_args().lines
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    for kind, title in KINDS.items():
        drawn = curves(lines, kind)
        file = PICTURES / f"growth-{kind.replace('_', '-')}.svg"
        file.write_text(picture(drawn, title), encoding="utf-8")
        print("\n".join([title, *table(drawn)]))


if __name__ == "__main__":
    main()
