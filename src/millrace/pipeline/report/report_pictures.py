"""The pictures of a job's report: the graph of its steps, and rates over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from millrace.pipeline.core.job_record import JobPart, JobRecord
from millrace.pipeline.report.job_report import JobReport, StepReport

_BOX_W, _BOX_H = 190, 74
_GAP_X, _GAP_Y = 96, 26
_PAD = 8
_NAME_MAX = 24
COLOURS = (
    "#2463a6",
    "#b7791f",
    "#2f7d4f",
    "#8a4fb5",
    "#b3362b",
    "#1d8a99",
    "#7a6a2b",
    "#c2557f",
)
_CHART_W, _STRIP_H, _STRIP_GAP = 1120, 92, 10
_LEFT, _BOTTOM, _RIGHT = 56, 28, 8
_POINTS_MAX = 240


def graph(report: JobReport) -> str:
    """Sources, steps and sinks from left to right, with their counts."""
    record = report.record
    cells = _cells(record)
    steps = {step.name: step for step in report.steps}
    columns = 1 + max((x for x, _ in cells.values()), default=0)
    rows = 1 + max((y for _, y in cells.values()), default=0)
    width = 2 * _PAD + columns * _BOX_W + (columns - 1) * _GAP_X
    height = 2 * _PAD + rows * _BOX_H + (rows - 1) * _GAP_Y
    lines = [
        _edge(record, part.name, given, cells, steps)
        for part in record.hops
        for given in record.feeders(part.name)
    ]
    boxes = [_box(part, cells[part.name], steps.get(part.name), report) for part in record.kept]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="steps of the job">'
        + "".join(lines + boxes)
        + "</svg>"
    )


def _cells(record: JobRecord) -> dict[str, tuple[int, int]]:
    """A column and a row for each part: as far right as its depth, below those already there."""
    depths: dict[str, int] = {}
    for part in record.kept:
        feeders = record.feeders(part.name)
        depths[part.name] = 1 + max((depths.get(name, 0) for name in feeders), default=-1)
    next_rows: dict[int, int] = {}
    cells: dict[str, tuple[int, int]] = {}
    for part in record.kept:
        column = depths[part.name]
        above = [cells[name][1] for name in record.feeders(part.name) if name in cells]
        row = max(next_rows.get(column, 0), min(above, default=0))
        cells[part.name] = (column, row)
        next_rows[column] = row + 1
    return cells


def _corner(cell: tuple[int, int]) -> tuple[int, int]:
    return _PAD + cell[0] * (_BOX_W + _GAP_X), _PAD + cell[1] * (_BOX_H + _GAP_Y)


def _box(part: JobPart, cell: tuple[int, int], step: StepReport | None, report: JobReport) -> str:
    x, y = _corner(cell)
    colour = _colour(report, part.name)
    if part.is_source:
        stroke, about = "var(--soft)", "journal" if part.kind == "journals" else "source"
    else:
        stroke = colour
        about = {
            "sink_parquet": "Parquet files",
            "sink_journal": "to a journal",
            "sink_postgres": "to PostgreSQL",
            "sink_delta": "Delta table",
            "sink_iceberg": "Iceberg table",
            "sink": "sink",
        }.get(part.kind, "expensive" if part.expensive else part.kind.replace("_", " "))
    if part.fused:
        about = f"{_cut(' + '.join(part.fused), _NAME_MAX)} + {about}"
    dash = ' stroke-dasharray="5 3"' if part.kind == "journals" else ""
    thick = 2.5 if part.expensive else 1.5
    radius = _BOX_H // 2 if part.is_source else 4 if part.is_sink else 10
    full = escape(f"{part.name}: {about} {part.target}".strip())
    frame = (
        f'<g><title>{full}</title><rect x="{x}" y="{y}" width="{_BOX_W}" height="{_BOX_H}" '
        f'rx="{radius}" fill="var(--card)" stroke="{stroke}" stroke-width="{thick}"{dash}/>'
    )
    lines = [
        frame,
        _text(x + _BOX_W / 2, y + 21, _cut(part.name, _NAME_MAX), "name"),
    ]
    trouble = _trouble(step)
    if trouble:
        lines.append(_text(x + _BOX_W / 2, y + 39, trouble, "", "red"))
    else:
        lines.append(_text(x + _BOX_W / 2, y + 39, _cut(about, 2 * _NAME_MAX - 16), "soft"))
    lines.append(_text(x + _BOX_W / 2, y + 59, _count_text(step), ""))
    return "".join(lines) + "</g>"


def _count_text(step: StepReport | None) -> str:
    if step is None:
        return ""
    if step.calls is not None:
        text = f"{step.calls:,} calls"
        return text + (f", {step.in_doubt:,} in doubt" if step.in_doubt else "")
    return f"{step.rows_per_s:,.0f} rows/s" if step.rows_per_s else ""


def _trouble(step: StepReport | None) -> str:
    """A text about skipped rows and dead letters, if there are any."""
    if step is None:
        return ""
    parts = [(step.dead_letters, "dead letters"), (step.skipped, "skipped")]
    return ", ".join(f"{count:,} {what}" for count, what in parts if count)


def _edge(
    record: JobRecord,
    name: str,
    given: str,
    cells: dict[str, tuple[int, int]],
    steps: dict[str, StepReport],
) -> str:
    if given not in cells:
        return ""
    x1, y1 = _corner(cells[given])
    x2, y2 = _corner(cells[name])
    x1, y1, y2 = x1 + _BOX_W, y1 + _BOX_H // 2, y2 + _BOX_H // 2
    bend = (x1 + x2) / 2
    path = f"M{x1} {y1} C{bend} {y1} {bend} {y2} {x2 - 5} {y2}"
    done = steps[name].rows_in if len(record.feeders(name)) == 1 else None
    out = steps[given].rows_out if given in steps else None
    count = done if done is not None else out
    label = ""
    if count is not None and y1 == y2:
        label = _text(bend, y2 - 7, short(count), "soft")
    elif count is not None:
        # On the side that the line does not come from.
        label = _text(x2 - 12, y2 + (16 if y2 > y1 else -8), short(count), "soft", None, "end")
    arrow = f"M{x2 - 8} {y2 - 4} L{x2 - 1} {y2} L{x2 - 8} {y2 + 4} Z"
    return (
        f'<path d="{path}" fill="none" stroke="var(--soft)" stroke-width="1.3"/>'
        f'<path d="{arrow}" fill="var(--soft)"/>{label}'
    )


def chart(report: JobReport) -> str:
    """Input rows done per second: a strip for each step, with a scale of its own."""
    curves = _curves(report)
    if not any(len(points) > 1 for points in curves):
        return '<p class="soft">The run was too short to draw.</p>'
    longest = max(point[0] for points in curves for point in points)
    height = len(curves) * (_STRIP_H + _STRIP_GAP) + _BOTTOM
    strips = [
        _strip(report.steps[number], COLOURS[number % len(COLOURS)], points, longest, number)
        for number, points in enumerate(curves)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_CHART_W}" height="{height}" '
        f'viewBox="0 0 {_CHART_W} {height}" role="img" aria-label="rows per second over time">'
        + "".join(strips)
        + _times(longest, height - _BOTTOM)
        + "</svg>"
    )


def _strip(
    step: StepReport,
    colour: str,
    points: Sequence[tuple[float, float]],
    longest: float,
    number: int,
) -> str:
    """The strip of one step's rate: a filled line between zero and its highest rate."""
    top = nice_top(max((rate for _, rate in points), default=0.0))
    base = (number + 1) * (_STRIP_H + _STRIP_GAP) - 2
    high = _STRIP_H - 20
    wide = _CHART_W - _LEFT - _RIGHT
    at = [
        f"{_LEFT + wide * second / longest:.1f},{base - high * rate / top:.1f}"
        for second, rate in points
    ]
    first, last = at[0].partition(",")[0], at[-1].partition(",")[0]
    lines = "".join(
        f'<line x1="{_LEFT}" y1="{y}" x2="{_LEFT + wide}" y2="{y}" stroke="var(--line)"/>'
        for y in (base, base - high)
    )
    return (
        f"<g><title>{escape(step.name)}</title>{lines}"
        f'<polygon points="{first},{base} {" ".join(at)} {last},{base}" fill="{colour}" '
        'fill-opacity="0.15"/>'
        f'<polyline points="{" ".join(at)}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        + _text(_LEFT, base - high - 6, _cut(step.name, 4 * _NAME_MAX), "name", None, "start")
        + _text(_LEFT - 8, base - high + 4, short(top), "soft", None, "end")
        + _text(_LEFT - 8, base + 4, "0", "soft", None, "end")
        + "</g>"
    )


def _curves(report: JobReport) -> list[list[tuple[float, float]]]:
    """For each step, the middle of each interval between samples, and the rate in it."""
    samples = report.samples
    stride = max(1, math.ceil(len(samples) / _POINTS_MAX))
    chosen = [*samples[:-1:stride], samples[-1]] if samples else []
    curves: list[list[tuple[float, float]]] = [[] for _ in report.steps]
    for before, after in pairwise(chosen):
        passed = after.at_s - before.at_s
        if passed <= 0:
            continue
        for number, points in enumerate(curves):
            done = after.rows_in[number] - before.rows_in[number]
            points.append(((after.at_s + before.at_s) / 2, max(0.0, done / passed)))
    return curves


def _times(longest: float, top: int) -> str:
    wide, parts = _CHART_W - _LEFT - _RIGHT, []
    for part in range(5):
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"  # noqa: PLR2004
        x = _LEFT + wide * part / 4
        parts.append(_text(x, top + 18, _duration(longest * part / 4), "soft", None, anchor))
    return "".join(parts)


def nice_top(value: float) -> float:
    """The end of an axis: 1, 2 or 5 times a power of ten, at or above a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def short(value: float) -> str:
    """A count in few characters: 950, 1.2k, 3.4M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if value != int(value) else f"{int(value)}"


def _duration(seconds: float) -> str:
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.3g} s"
    minutes = seconds / 60
    return f"{minutes:.3g} min" if minutes < 120 else f"{minutes / 60:.3g} h"  # noqa: PLR2004


def _colour(report: JobReport, name: str) -> str:
    names = [step.name for step in report.steps]
    return COLOURS[names.index(name) % len(COLOURS)] if name in names else "var(--soft)"


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _text(
    x: float, y: float, text: str, kind: str, colour: str | None = None, anchor: str = "middle"
) -> str:
    style = f' style="fill:var(--{colour})"' if colour else ""
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{name}{style}>{escape(text)}</text>'
