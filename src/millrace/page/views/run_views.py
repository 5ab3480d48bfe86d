"""Pages of queries and shuffles: the list, one run, one of its stages, two runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from millrace.ids import QueryId, StageId
from millrace.page import page_texts
from millrace.page.pictures.bars import partition_bars, task_lanes
from millrace.page.pictures.layered_graph import GraphEdge, GraphNode, layered_graph
from millrace.page.views.look import PAGE_ROWS, Look, NotThere, Values, page_links
from millrace.shuffle import runs
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.runs import Run
from millrace.shuffle.stage_record import StageRecord
from millrace.storage import layout
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.shuffle_tables import (
    SeenStage,
    seen_run,
    seen_stage,
    seen_stages,
    stage_row,
    task_rows,
)
from millrace.system.workspace_now import RunMemory
from millrace.text import counted

_ALIKE_SOUGHT: Final = 20
_KEY_BATCHES: Final = 64
_CHOSEN_SHOWN_MAX: Final = 20_000


def list_page(look: Look, memory: RunMemory) -> Values:
    """The runs, newest first."""
    at = look.whole("at")
    ids = look.workspace.store.numbers(layout.SHUFFLE)[::-1]
    rows = memory.listed(look.workspace, ids[at : at + PAGE_ROWS])
    timed = [row for row in reversed(rows) if row["seconds"] is not None]
    data = [[row["run"] for row in timed], [row["seconds"] for row in timed]]
    return {
        "title": "Runs",
        "runs": rows,
        "seconds_chart": page_texts.chart(["seconds"], data, is_time=False) if timed else "",
        "links": page_links("/runs", {}, at=at, rows=len(rows), total=len(ids)),
    }


def run_page(look: Look, memory: RunMemory, number: int) -> Values:
    """One run: its stages as a graph, what was reused and why not more, its tasks over time."""
    workspace, query_id = look.workspace, QueryId(number)
    row = _row(workspace, memory, number)
    stages = list(seen_stages(workspace, query_id))
    rows = [stage_row(stage) for stage in stages]
    tasks = [task for stage in stages for task in _tasks_shown(stage)]
    timed = [row["seconds"] for row in rows if row["seconds"] is not None]
    reused, all_tasks = sum(r["reused"] for r in rows), sum(r["map_tasks"] for r in rows)
    return {
        "title": f"Run {number}",
        "run": row,
        "lead": _lead(row),
        "earlier": _alike_before(workspace, row),
        "figures": [
            ("took", page_texts.seconds(row["seconds"]) or None, ""),
            ("stages finished", f"{len(rows)}", f" of {row['stages'] or '?'}"),
            ("tasks reused", page_texts.number(reused), f" of {all_tasks:,}"),
            ("rows", page_texts.number(row["rows"]) or None, ""),
            ("size", page_texts.size(row["bytes"]) or None, ""),
            ("in stages", page_texts.seconds(sum(timed)) if timed else None, ""),
            ("spilled", _known_size(row["spilled_bytes"] for row in rows), ""),
            ("fetched", _known_size(row["fetched_bytes"] for row in rows), " from other hosts"),
        ],
        "stages": rows,
        "graph": _graph(workspace, row, stages),
        "lanes": task_lanes(tasks),
    }


def _known_size(sizes: Iterable[int | None]) -> str | None:
    """The sum of those that are known; None if that is nothing."""
    known = [size for size in sizes if size is not None]
    return page_texts.size(sum(known)) if sum(known) else None


def _fetched(record: StageRecord | None) -> str:
    """What the tasks of a stage fetched from other hosts, in words."""
    fetched = None if record is None else record.fetched
    if not fetched:
        return ""
    ahead = page_texts.size(fetched.queued_bytes_max)
    return f"Its tasks {fetched}; up to {ahead} asked for ahead of a reader."


def _tasks_shown(stage: SeenStage) -> list[Values]:
    return list(islice(task_rows(stage), _CHOSEN_SHOWN_MAX))


def _row(workspace: RestingWorkspace, memory: RunMemory, number: int) -> Values:
    row = memory.row_there(workspace, QueryId(number))
    if row is None:
        raise NotThere(f"there is no run {number}\n  to fix: choose one of those listed under Runs")
    return row


def _lead(row: Mapping[str, Any]) -> str:
    parts = [f"Began {page_texts.moment(row['began'])}"]
    if row["who"]:
        parts.append(f"by {row['who']} on {row['host']}")
    if row["master"]:
        parts.append(f"on {row['master']}")
    return ", ".join(parts) + "."


def _alike_before(workspace: RestingWorkspace, row: Mapping[str, Any]) -> int | None:
    """The last run before this one with the same plan, among the nearest."""
    ids = [n for n in workspace.store.numbers(layout.SHUFFLE) if n < row["run"]]
    for number in reversed(ids[-_ALIKE_SOUGHT:]):
        other = seen_run(workspace, QueryId(number))
        if isinstance(other, Run) and other.plan == row["plan"]:
            return number
    return None


def _graph(
    workspace: RestingWorkspace, row: Mapping[str, Any], stages: Sequence[SeenStage]
) -> object:
    number = row["run"]
    nodes = [_stage_node(number, stage) for stage in stages]
    there = {int(stage.manifest.stage_id): stage.manifest for stage in stages}
    if row["state"] in ("running", "died"):
        nodes += [
            _unfinished_node(workspace, QueryId(number), stage)
            for stage in range(row["stages"] or 1)
            if stage not in there
        ]
    edges = [
        GraphEdge(f"{stage}", f"{done.manifest.stage_id}", _passed(there.get(stage)))
        for done in stages
        for run, stage in done.reads
        if run == number
    ]
    others = sorted({read for done in stages for read in done.reads if read[0] != number})
    nodes = [
        *(
            GraphNode(
                id=f"{run}/{stage}", name=f"run {run}", lines=("saved rows",), href=f"/runs/{run}"
            )
            for run, stage in others
        ),
        *nodes,
    ]
    edges += [
        GraphEdge(f"{run}/{stage}", f"{done.manifest.stage_id}")
        for done in stages
        for run, stage in done.reads
        if run != number
    ]
    return layered_graph(nodes, edges, "graph of the stages")


def _passed(manifest: object) -> str:
    sizes = getattr(manifest, "partition_bytes", ())
    return page_texts.size(sum(sizes)) if sizes else ""


def _stage_node(run: int, stage: SeenStage) -> GraphNode:
    row = stage_row(stage)
    took = f", {page_texts.seconds(row['seconds'])}" if row["seconds"] is not None else ""
    is_reused = row["reused"] == row["map_tasks"]
    done = "all reused" if is_reused else f"{row['map_tasks'] - row['reused']} run"
    return GraphNode(
        id=f"{row['stage']}",
        name=f"stage {row['stage']}",
        lines=(
            f"{row['rows']:,} rows, {page_texts.size(row['bytes'])}",
            f"{counted(row['map_tasks'], 'task')}, {done}{took}",
        ),
        kind="reused" if is_reused else "",
        href=f"/runs/{run}/stages/{row['stage']}",
    )


def _unfinished_node(workspace: RestingWorkspace, query_id: QueryId, stage: int) -> GraphNode:
    begun = len(runs.map_tasks(workspace.store, query_id, StageId(stage)))
    alive = runs.is_alive(
        workspace.store, query_id, now_ms=workspace.now_ms(), config=workspace.config
    )
    lines = (f"{counted(begun, 'task')} begun",) if begun else ("not begun, or left out",)
    kind = ("run" if alive else "bad") if begun else ""
    return GraphNode(id=f"{stage}", name=f"stage {stage}", lines=lines, kind=kind)


def stage_page(look: Look, number: int, stage_number: int) -> Values:
    """One stage: how rows spread over partitions, and each task."""
    stage = _stage(look.workspace, number, stage_number)
    row, at = stage_row(stage), look.whole("at")
    manifest = stage.manifest
    mean = row["bytes"] / row["partitions"]
    order = sorted(range(row["partitions"]), key=lambda p: -manifest.partition_bytes[p])
    total = len(manifest.chosen)
    tasks = list(islice(task_rows(stage), at, at + PAGE_ROWS))
    path = f"/runs/{number}/stages/{stage_number}"
    largest, largest_links = look.page(path, order, at="partitions_at")
    others = {name: text for name, text in look.asked.items() if name != "at"}
    return {
        "title": f"Stage {stage_number} of run {number}",
        "s": row,
        "figures": [
            ("took", page_texts.seconds(row["seconds"]) or None, ""),
            ("rows", page_texts.number(row["rows"]), ""),
            ("size", page_texts.size(row["bytes"]), ""),
            ("partitions", page_texts.number(row["partitions"]), ""),
            ("largest partition", page_texts.size(row["largest_partition_bytes"]), ""),
            ("skew", page_texts.times(row["skew"]) or None, " of the mean"),
            ("spilled", _known_size([row["spilled_bytes"]]), " of its tasks' rows"),
        ],
        "fetched": _fetched(stage.record),
        "skew": partition_bars(manifest.partition_bytes),
        "largest": [
            {
                "partition": p,
                "rows": manifest.partition_rows[p],
                "bytes": manifest.partition_bytes[p],
                "share": manifest.partition_bytes[p] / mean if mean else None,
            }
            for p in largest
        ],
        "largest_links": largest_links,
        "lanes": task_lanes(_tasks_shown(stage)),
        "tasks": tasks,
        "links": page_links(path, others, at=at, rows=len(tasks), total=total),
    }


def _stage(workspace: RestingWorkspace, number: int, stage_number: int) -> SeenStage:
    stage = seen_stage(workspace, QueryId(number), StageId(stage_number))
    if stage is None:
        raise NotThere(
            f"run {number} has no finished stage {stage_number}\n"
            "  to fix: choose one of those that its page lists"
        )
    return stage


def keys_page(look: Look, number: int, stage_number: int, partition: int) -> Values:
    """The keys with the most rows in a partition; the first rows of a large one are looked at."""
    stage = _stage(look.workspace, number, stage_number)
    keys = list(map(str, stage.manifest.partitioner.get("keys", ())))
    if not keys or not 0 <= partition < stage.manifest.partitions:
        raise NotThere(f"there are no keys of partition {partition}\n  to fix: choose another")
    shuffle = Shuffle(manifest=stage.manifest, stores={None: look.workspace.store}, remote=None)
    batches = list(islice(shuffle.batches(partition, keys), _KEY_BATCHES))
    rows = pa.Table.from_batches(batches) if batches else None
    read = 0 if rows is None else rows.num_rows
    path = f"/runs/{number}/stages/{stage_number}/keys/{partition}"
    shown, links = _counted(look, path, rows, keys)
    whole = stage.manifest.partition_rows[partition]
    of = "all" if read == whole else "the first"
    return {
        "title": f"Keys of partition {partition}",
        "run": number,
        "stage": stage_number,
        "partition": partition,
        "names": keys,
        "lead": f"Of {of} {read:,} of its {whole:,} rows, the keys that are there most often.",
        "rows": [
            {
                "values": [page_texts.cell(row[key]) for key in keys],
                "rows": row["n"],
                "share": row["n"] / read,
            }
            for row in shown
        ],
        "links": links,
    }


def _counted(
    look: Look, path: str, rows: pa.Table | None, keys: list[str]
) -> tuple[list[Values], Values | None]:
    """A page of the keys, most rows first, and the links to the others."""
    if rows is None:
        return [], None
    # In one thread, keys with as many rows have the same order on every page.
    groups = rows.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    counts = groups.rename_columns([*keys, "n"]).sort_by([("n", "descending")])
    at = look.whole("at")
    return look.page(path, counts.slice(at, PAGE_ROWS).to_pylist(), total=counts.num_rows)


def compare_page(look: Look, memory: RunMemory) -> Values:
    """Two runs side by side, and why tasks of the later one ran."""
    workspace = look.workspace
    a, b = (_row(workspace, memory, look.whole(name)) for name in ("a", "b"))
    first, second = (
        {row["stage"]: row for row in map(stage_row, seen_stages(workspace, QueryId(run["run"])))}
        for run in (a, b)
    )
    numbers = sorted(first.keys() | second.keys())
    rows = [_pair(f"stage {n}", first.get(n), second.get(n)) for n in numbers]
    whole = _pair(
        "the run",
        {**a, "reused": None, "map_tasks": None},
        {**b, "reused": None, "map_tasks": None},
    )
    same = "The plan is the same." if a["plan"] == b["plan"] else "The plans differ."
    return {
        "title": f"Run {a['run']} and run {b['run']}",
        "a": a,
        "b": b,
        "lead": f"{same} Stages are compared by their numbers.",
        "rows": [*rows, whole],
    }


def _pair(name: str, a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> Values:
    def both(key: str, write: Any, *, worse: bool = False) -> tuple[str, str, str]:  # noqa: ANN401
        x, y = (None if row is None else row.get(key) for row in (a, b))
        tone = ""
        if worse and x and y:
            tone = "bad-text" if y > 1.25 * x else "ok-text" if y < 0.8 * x else ""
        return write(x), write(y), tone

    def reused(row: Mapping[str, Any] | None) -> str:
        if row is None or row.get("map_tasks") is None:
            return ""
        return f"{row['reused']:,} of {row['map_tasks']:,}"

    return {
        "name": name,
        "pairs": [
            both("seconds", page_texts.seconds, worse=True),
            both("rows", page_texts.number),
            both("bytes", page_texts.size),
            (reused(a), reused(b), ""),
        ],
        "reasons": [] if b is None else b.get("reasons", []),
    }
