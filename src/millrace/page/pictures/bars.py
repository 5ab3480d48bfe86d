"""Bars side by side, and tasks over time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from millrace.page.page_texts import seconds, size
from millrace.page.pictures.svg import cut, line, picture, rect, text

_BINS_MAX: Final = 240
_LANES_MAX: Final = 48
_TASKS_MAX: Final = 4_000
_LABEL, _WIDE, _LANE = 150, 900, 20


_LABELS_WIDE: Final = 150
"""Narrower bars have no room for a number at each end."""


def partition_bars(sizes: Sequence[int]) -> Markup:
    """The size of each partition; of very many the largest of some neighbours."""
    step = -(-len(sizes) // _BINS_MAX) or 1
    bins = [max(sizes[at : at + step]) for at in range(0, len(sizes), step)]
    top, mean = max(sizes, default=0), sum(sizes) / max(1, len(sizes))
    high, left = 120, 70
    width = min(28.0, _WIDE / max(1, len(bins)))
    parts = [
        text(left - 8, 14, size(top), "faint", "end"),
        text(left - 8, high + 4, "0", "faint", "end"),
        line(left, high, left + width * len(bins), high, "axis"),
    ]
    for number, amount in enumerate(bins):
        tall = (high - 6) * amount / top if top else 0
        first = number * step
        of = f"{first}" if step == 1 else f"{first} to {min(first + step, len(sizes)) - 1}"
        kind = "bar big" if mean and amount >= 3 * mean and len(sizes) > 1 else "bar"
        title = f"partition {of}: {size(amount)}"
        x = left + number * width
        parts.append(rect(x, high - tall, max(0.8, width - 1.5), tall, kind, title=title))
    if top:
        at = high - (high - 6) * mean / top
        parts.append(line(left, at, left + width * len(bins), at, "mean"))
        parts.append(text(left + width * len(bins) + 8, at + 4, f"mean {size(mean)}", "faint"))
    end = left + width * len(bins)
    if len(sizes) > 1 and end - left < _LABELS_WIDE:
        parts.append(text(left, high + 18, f"partitions 0 to {len(sizes) - 1}", "faint"))
    else:
        parts.append(text(left, high + 18, "partition 0", "faint"))
        if len(sizes) > 1:
            parts.append(text(end, high + 18, f"{len(sizes) - 1:,}", "faint", "end"))
    return picture(left + width * len(bins) + 130, high + 26, parts, "bytes of each partition")


def task_lanes(tasks: Sequence[Mapping[str, Any]]) -> Markup | None:
    """When each task ran, a lane for each process; None if no task has a time."""
    timed = [t for t in tasks if t["began"] is not None and t["ended"] is not None]
    if not timed:
        return None
    begin, end = min(t["began"] for t in timed), max(t["ended"] for t in timed)
    span = max(1, end - begin)
    lanes: dict[tuple[str, int], int] = {}
    for task in sorted(timed, key=lambda t: (t["host"], t["worker"])):
        lanes.setdefault((task["host"], task["worker"]), len(lanes))
    shown = dict(list(lanes.items())[:_LANES_MAX])
    parts = [
        text(_LABEL - 10, n * _LANE + 14, cut(f"{host} {worker}", 20), "soft", "end")
        for (host, worker), n in shown.items()
    ]
    parts += [rect(_LABEL, n * _LANE + 4, _WIDE, 12, "track") for n in shown.values()]
    # The longest are drawn where there are too many: the others would be thinner than a hair.
    longest = sorted(timed, key=lambda t: t["began"] - t["ended"])[:_TASKS_MAX]
    for task in longest:
        lane = shown.get((task["host"], task["worker"]))
        if lane is None:
            continue
        x = _LABEL + _WIDE * (task["began"] - begin) / span
        wide = _WIDE * (task["ended"] - task["began"]) / span
        took = seconds((task["ended"] - task["began"]) / 1e6)
        title = f"stage {task['stage']}, task {task['task']}: {took}, {task['rows']:,} rows"
        if task["failed_before"]:
            title += f", after {task['failed_before']} failures"
        kind = "bar big" if task["failed_before"] else "bar alt" if task["stage"] % 2 else "bar"
        parts.append(rect(x, lane * _LANE + 4, max(1.5, wide - 0.5), 12, kind, title=title))
    low = len(shown) * _LANE + 8
    for part in range(5):
        x = _LABEL + _WIDE * part / 4
        anchor = "end" if part == 4 else "start" if not part else "middle"  # noqa: PLR2004 - the last
        parts.append(text(x, low + 10, seconds(span * part / 4 / 1e6), "faint", anchor))
    left_out = len(lanes) - len(shown)
    if left_out > 0:
        parts.append(text(_LABEL, low + 26, f"and {left_out} more processes", "faint"))
    return picture(_LABEL + _WIDE + 4, low + (30 if left_out > 0 else 16), parts, "tasks over time")


def progress_lines(
    names: Sequence[str], samples: Sequence[tuple[float, Sequence[int]]]
) -> Markup | None:
    """How many rows each step had done at each moment of a run; None without samples."""
    top = max((rows for _, some in samples for rows in some), default=0)
    if len(samples) < 2 or not top:  # noqa: PLR2004 - a line
        return None
    last, high, left, wide = samples[-1][0] or 1.0, 130, 80, 760
    parts = [
        line(left, high, left + wide, high, "axis"),
        text(left - 8, 14, f"{top:,}", "faint", "end"),
        text(left - 8, high + 4, "0", "faint", "end"),
        text(left, high + 18, "0 s", "faint"),
        text(left + wide, high + 18, seconds(last), "faint", "end"),
    ]
    # Until the first row of any step: Spark starts, workers load what they call.
    start = next((at for at, some in samples if any(some)), 0.0)
    if start > 0:
        x = left + wide * start / last
        parts.append(rect(left, 6, x - left, high - 6, "track"))
        parts.append(text(left + 6, 20, f"start, {seconds(start)}", "faint"))
    taken: list[float] = []
    for number, name in enumerate(names):
        points = [
            (left + wide * at / last, high - (high - 8) * some[number] / top)
            for at, some in samples
            if number < len(some)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="edge" points="{path}"/>')
        y = points[-1][1] + 4
        while any(abs(y - other) < 14 for other in taken):  # noqa: PLR2004 - a line of text
            y += 14
        taken.append(y)
        parts.append(text(left + wide + 10, y, cut(name, 26), "soft"))
    low = max([high + 26, *[y + 8 for y in taken]])
    return picture(left + wide + 210, low, parts, "rows done over time")
