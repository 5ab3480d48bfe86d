"""Pictures: every text is escaped, sizes keep their limits, times stand where they belong."""

from __future__ import annotations

import re
from typing import Any

from millrace.page import page_texts
from millrace.page.pictures.bars import partition_bars, progress_lines, task_lanes
from millrace.page.pictures.layered_graph import GraphEdge, GraphNode, layered_graph


def task(number: int, began: int, ended: int, worker: int = 1) -> dict[str, Any]:
    return {
        "task": number,
        "stage": 0,
        "began": began,
        "ended": ended,
        "host": "<h>",
        "worker": worker,
        "rows": 1,
        "failed_before": 0,
    }


def test_names_are_escaped_in_every_picture() -> None:
    evil = '<script>"&'
    graph = layered_graph(
        [
            GraphNode(id="a", name=evil, lines=(evil,), href=f"/x?{evil}"),
            GraphNode(id="b", name="b"),
        ],
        [GraphEdge("a", "b", evil)],
        evil,
    )

    assert "<script>" not in graph
    assert "&lt;script&gt;" in graph
    assert "<h>" not in str(task_lanes([task(0, 0, 10)]))


def test_what_feeds_stands_left_of_what_it_feeds_also_in_a_circle() -> None:
    nodes = [GraphNode(id=name, name=name) for name in "abc"]
    edges = [GraphEdge("a", "b"), GraphEdge("b", "c"), GraphEdge("c", "a"), GraphEdge("x", "a")]

    found = layered_graph(nodes, edges[:2], "")
    xs = [float(x) for x in re.findall(r'<rect class="box " x="([\d.]+)"', found)]

    assert xs == sorted(xs)
    assert len(set(xs)) == 3
    assert layered_graph(nodes, edges, "")


def test_very_many_partitions_become_few_bars_and_keep_the_largest() -> None:
    sizes = [10] * 65_536
    sizes[40_000] = 99_999

    found = partition_bars(sizes)

    assert len(re.findall("<rect", found)) <= 240
    assert page_texts.size(99_999) in found
    assert "bar big" in found


def test_tasks_stand_in_the_lane_of_their_process_and_few_are_drawn_of_many() -> None:
    assert task_lanes([{**task(0, 0, 1), "began": None}]) is None
    many = [task(n, n * 10, n * 10 + 9, n % 3) for n in range(9_000)]

    found = str(task_lanes(many))

    assert len(re.findall('class="track"', found)) == 3
    assert len(re.findall('class="bar"', found)) == 4_000


def test_progress_needs_two_moments() -> None:
    assert progress_lines(["a"], [(0.0, (1,))]) is None
    assert "polyline" in str(progress_lines(["a"], [(0.0, (0,)), (2.0, (5,))]))


def test_lengths_of_time_and_sums_of_money_are_short() -> None:
    given = (0.0123, 3.21, 75, 3_700, 200_000)
    assert [page_texts.seconds(s) for s in given] == [
        "12 ms",
        "3.2 s",
        "1 min 15 s",
        "1 h 01 min",
        "2 d 7 h",
    ]
    assert [page_texts.dollars(d) for d in (0, 0.00123, 0.0000031, 12.5, None)] == [
        "$0.00",
        "$0.0012",
        "$0.0000031",
        "$12.50",
        "",
    ]
