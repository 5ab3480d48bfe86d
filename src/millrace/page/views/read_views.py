"""Pages of coordinated reads: the list, and one read with its journals and what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from millrace.durations import ms
from millrace.journal.core.clocks import Clock, unix_ns_of
from millrace.journal.core.journal_names import JournalChoice
from millrace.journal.core.values import JournalInfo
from millrace.journal.embedded.journals_at_rest import RestingJournals
from millrace.keys.key_ranges import tile
from millrace.page import page_texts
from millrace.page.pictures.svg import share_bar
from millrace.page.views.look import PAGE_ROWS, Look, NotThere, Values, page_links
from millrace.reads.model.checkpoint import Checkpoint, merge, resume_offsets
from millrace.reads.model.coordinated_read import CoordinatedRead
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.tags import binding_of, journal_of
from millrace.reads.session.checkpoint_store import (
    journal_name,
    read_checkpoints,
    stored_read,
)
from millrace.system.read_tables import (
    checkpoint_rows,
    live_status,
    names_of_reads,
    session_row,
)


def list_page(look: Look) -> Values:
    """The coordinated reads, by name."""
    rows, at, names = [], look.whole("at"), names_of_reads(look.workspace)
    for name in names[at : at + PAGE_ROWS]:
        with look.workspace.journals(JournalChoice(names=(journal_name(name),))) as journals:
            rows.append(session_row(look.workspace, journals, name))
    links = page_links("/reads", {}, at=at, rows=len(rows), total=len(names))
    return {"title": "Coordinated reads", "rows": rows, "links": links}


def read_page(look: Look, name: str) -> Values:
    """One read: its session, how far it is in each journal, and what its checkpoints wait for."""
    if name not in names_of_reads(look.workspace):
        raise NotThere(f"there is no coordinated read {name!r}\n  to fix: choose one of the list")
    own = journal_name(name)
    with look.workspace.journals(JournalChoice(names=(own,))) as journals:
        row = session_row(look.workspace, journals, name)
        stored, read = read_checkpoints(journals, name), stored_read(journals, name)
        checkpoints = list(checkpoint_rows(journals, name))
    whole = merge(stored.committed, *stored.prepared)
    prefixes = () if read is None else tuple(binding.prefix for binding in read.bindings)
    with look.workspace.journals(JournalChoice(names=(own,), prefixes=prefixes)) as journals:
        progress = _progress(journals, read, whole)
    frontier = _frontier(read, whole)
    live = live_status(look.workspace, name) or {}
    disk = live.get("disk_bytes", [])
    path = f"/reads/{quote(name)}"
    shown, links = look.page(path, progress)
    producers, producer_links = look.page(path, frontier, at="frontier_at")
    return {
        "title": name,
        "r": row,
        "lead": _lead(row),
        "figures": [
            ("committed checkpoint", page_texts.number(row["committed"]), ""),
            ("handed out", page_texts.number(row["prepared"]), ""),
            ("journals", page_texts.number(len(whole.reads.tag)), ""),
            ("behind", page_texts.number(sum(j["behind"] for j in progress)), " rows or fewer"),
            ("on disk", page_texts.size(sum(disk)) if disk else None, ""),
        ],
        "bindings": _bindings(read),
        "checkpoints": list(reversed(checkpoints)),
        "members": [
            {
                "number": n,
                "slice": str(keys),
                "bytes": size,
                "bar": share_bar(size / (max(disk) or 1)),
            }
            for n, (size, keys) in enumerate(zip(disk, tile(len(disk) or 1), strict=False))
        ],
        "journals": shown,
        "journals_links": links,
        "frontier": producers,
        "frontier_links": producer_links,
    } | _live_lists(look, path, live)


def _live_lists(look: Look, path: str, live: Mapping[str, Any]) -> Values:
    """What an open session last said that waits, is open and is sent between members."""
    values: Values = {}
    for name in ("waiting", "long_open", "streams"):
        rows, links = look.page(path, live.get(name, []), at=f"{name}_at")
        values |= {name: rows, f"{name}_links": links}
    return values


def _lead(row: Mapping[str, Any]) -> str:
    if row["open"]:
        return f"A session is open, heard of {page_texts.seconds(row['heard_s'])} ago."
    if row["heard_s"] is not None:
        ago = page_texts.seconds(row["heard_s"])
        return f"A session was last heard of {ago} ago: it may be dead."
    return "No session is open on this host. The next one goes on behind the committed checkpoint."


def _frontier(read: CoordinatedRead | None, whole: Checkpoint) -> list[Values]:
    """Up to when each producer's rows are shown in a cohort, those furthest back first."""
    cohorts = () if read is None else read.cohorts()
    rows: dict[tuple[int, int], Values] = {}
    shown = whole.shown
    columns = (shown.tag.tolist(), shown.producer.tolist(), shown.clock.tolist())
    for (tag, producer, clock), begin in zip(
        zip(*columns, strict=True), shown.begin.tolist(), strict=True
    ):
        binding = binding_of(tag)
        cohort = int(cohorts[binding]) if binding < len(cohorts) else 0
        row = rows.setdefault(
            (cohort, producer),
            {
                "cohort": cohort,
                "producer": f"{producer:012x}",
                "clock": 0,
                "journals": 0,
                "open": 0,
            },
        )
        row["clock"] = max(row["clock"], clock)
        row["journals"] += 1
        row["open"] += begin != NONE
    for row in rows.values():
        row["at"] = unix_ns_of(Clock(row["clock"])) // 1000 if row["clock"] else None
    return sorted(rows.values(), key=lambda row: (row["clock"], row["producer"]))


def _bindings(read: CoordinatedRead | None) -> list[Values]:
    return [
        {
            "name": binding.name,
            "cohort": int(cohort),
            "prefix": binding.prefix,
            "key": list(binding.key or ()),
            "priority": binding.priority,
            "delay": ms(binding.read_delay) / 1000,
        }
        for binding, cohort in (
            () if read is None else zip(read.bindings, read.cohorts(), strict=True)
        )
    ]


def _progress(
    journals: RestingJournals, read: CoordinatedRead | None, whole: Checkpoint
) -> list[Values]:
    """How far the read is in each journal, those that are furthest behind first."""
    infos: dict[int, JournalInfo] = {int(info.id): info for info in journals.list()}
    names = [] if read is None else [binding.name for binding in read.bindings]
    offsets = dict(zip(whole.reads.tag.tolist(), whole.reads.offset.tolist(), strict=True))
    there = {tag: infos[journal_of(tag)] for tag in offsets if journal_of(tag) in infos}
    producers = Counter(whole.shown.tag.tolist())
    resumes = resume_offsets(whole)
    ends = {info.name: int(journals.end_offset(info.name)) for info in there.values()}
    rows = [
        {
            "journal": info.name,
            "binding": names[binding_of(tag)] if binding_of(tag) < len(names) else "",
            "offset": offsets[tag],
            "end": ends[info.name],
            "behind": max(0, ends[info.name] - offsets[tag]),
            "open": resumes[tag] if resumes[tag] < offsets[tag] else None,
            "producers": producers[tag],
        }
        for tag, info in there.items()
    ]
    return sorted(rows, key=lambda row: (-row["behind"], row["journal"]))
