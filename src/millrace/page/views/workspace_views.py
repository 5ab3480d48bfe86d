"""Pages of the workspace itself: what it is, its disk, its owner, and questions to it in SQL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.durations import ms
from millrace.engine.questions.table_question import QuestionLimits
from millrace.errors import MillraceError, UserError
from millrace.metrics import process_reports
from millrace.metrics.metric_catalog import PROCESS_METRICS
from millrace.page import page_texts
from millrace.page.pictures.svg import share_bar
from millrace.page.views.look import Look, Values
from millrace.shuffle import cleanup
from millrace.system.catalog import TABLES
from millrace.system.file_tables import file_rows
from millrace.system.questions import SystemTables
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.workspace_now import RunMemory, workspace_now
from millrace.transport.owner import broker_address, owner_endpoint
from millrace.transport.owner.owner_endpoint import OwnerEndpoint
from millrace.upkeep.journal_folder import NoJournals
from millrace.upkeep.retention_rules import read_rules
from millrace.version import __version__

Doctor = Callable[[], Sequence[Any]]
_GC_TTL: Final = "1d"
"""As `millrace shuffle gc` has it."""
_ANSWER_ROWS: Final = 500
_DAY_US: Final = 86_400_000_000
_AGES: Final = (("to a day", _DAY_US), ("to a week", 7 * _DAY_US), ("older", None))
_EXAMPLE: Final = "SELECT state, count(*) AS runs, sum(seconds) AS seconds FROM runs GROUP BY state"


def overview_page(look: Look, memory: RunMemory) -> Values:
    """What runs now, and what ran last."""
    workspace = look.workspace
    now, journals, reason = workspace_now(workspace, memory), None, look.no_journals()
    if reason is None:
        with workspace.pages() as pages:
            journals = pages.count()
    return {
        "title": "Overview",
        "name": os.path.basename(workspace.store.root.rstrip("/")) or workspace.store.root,
        "about": now.text,
        "running": now.is_busy,
        "figures": [
            ("runs", page_texts.number(now.run_count), ""),
            ("jobs", page_texts.number(now.job_count), ""),
            ("journals", None if journals is None else page_texts.number(journals), ""),
        ],
        "runs": now.runs,
        "more_runs": now.run_count if now.run_count > len(now.runs) else None,
        "jobs": now.jobs,
        "more_jobs": now.job_count if now.job_count > len(now.jobs) else None,
        "no_jobs": reason or "No job ran here yet.",
    }


def workspace_page(look: Look, *, has_doctor: bool) -> Values:
    """What the workspace is, who owns its journals, and how long things are kept."""
    workspace = look.workspace
    store = workspace.store
    return {"title": "Workspace", "has_doctor": has_doctor, "live": False, "about": [
        ("path", store.root),
        ("id", workspace.id),
        ("Millrace that looks", __version__),
        *_journal_facts(workspace),
        ("retention", _retention(workspace)),
    ], "processes": _processes(workspace)}  # fmt: skip


def _processes(workspace: RestingWorkspace) -> list[Values]:
    """The processes that have joined, which say so now and then, the last heard of first."""
    endpoint = owner_endpoint.read(workspace.store)
    owner = None if endpoint is None else f"{endpoint.host}:{endpoint.pid}"
    return [
        {
            "name": each.name,
            "part": "owns the journals" if each.name == owner else _work(each.jobs),
            "heard": each.at_us,
        }
        for each in process_reports.processes(workspace.store, PROCESS_METRICS, time.time())
    ]


def _work(jobs: Sequence[str]) -> str:
    return f"works on {', '.join(jobs)}" if jobs else ""


def _journal_facts(workspace: RestingWorkspace) -> list[tuple[str, str]]:
    store = workspace.store
    kept, kind = workspace.journals_are_in(), broker_address.recorded(store)
    endpoint, served = owner_endpoint.read(store), owner_endpoint.kept_for(store)
    facts = [("journals", kind or "never opened")]
    if not isinstance(kept, NoJournals) and workspace.has_journals():
        with workspace.pages() as pages:
            number, at_ms = pages.last_commit()
        facts.append(("ledger", kept.ledger))
        facts.append(("last commit", f"{number:,}, {page_texts.moment(at_ms * 1000)}"))
    facts.append(("owner", _owner(workspace, endpoint)))
    if served is not None:
        facts.append(("left to", f"millrace serve at {served}"))
    return facts


def _owner(workspace: RestingWorkspace, endpoint: OwnerEndpoint | None) -> str:
    if endpoint is None:
        return "no process has the journals open"
    about = f"{endpoint}, epoch {endpoint.epoch}"
    changed = workspace.store.changed_at_ms(owner_endpoint.OWNER_FILE)
    since = "" if changed is None else f", since {page_texts.moment(changed * 1000)}"
    is_here = endpoint.host == os.uname().nodename
    gone = is_here and not os.path.exists(f"/proc/{endpoint.pid}")
    return f"{about}{since}{'; that process is gone' if gone else ''}"


def _retention(workspace: RestingWorkspace) -> str:
    rules = read_rules(workspace.store)
    return "everything is kept" if rules.is_empty else str(rules)


def disk_part(look: Look) -> Values:
    """What lies on the disk, by kind and age."""
    began, now_us = time.monotonic(), look.workspace.now_ms() * 1000
    sums: dict[str, list[int]] = {}
    for row in file_rows(look.workspace.store):
        of = sums.setdefault(row["kind"], [0] * (2 + len(_AGES)))
        of[0] += 1
        of[1] += row["disk_bytes"]
        age = now_us - row["changed"] if row.get("changed") is not None else None
        place = next(n for n, (_, most) in enumerate(_AGES) if most is None or (age or 0) < most)
        of[2 + place] += row["disk_bytes"]
    largest = max((of[1] for of in sums.values()), default=0) or 1
    ordered = sorted(sums.items(), key=lambda pair: -pair[1][1])
    total, files = sum(of[1] for of in sums.values()), sum(of[0] for of in sums.values())
    return {
        "ages": [name for name, _ in _AGES],
        "rows": [
            {
                "kind": kind,
                "files": of[0],
                "bytes": of[1],
                "by_age": of[2:],
                "bar": share_bar(of[1] / largest, width=48),
            }
            for kind, of in ordered
        ],
        "note": f"{files:,} files, {page_texts.size(total)}, "
        f"counted in {page_texts.seconds(time.monotonic() - began)}.",
    }


def cleanup_part(look: Look) -> Values:
    """What `millrace shuffle gc` would remove now; it looks, and removes nothing."""
    workspace, ttl_ms = look.workspace, ms(_GC_TTL)
    found = cleanup.expiring(
        workspace.store, ttl_ms=ttl_ms, now_ms=workspace.now_ms(), config=workspace.config
    )
    return {
        "expired": len(found.expired),
        "left": len(found.abandoned),
        "bytes": found.bytes,
        "age": page_texts.seconds(ttl_ms / 1000),
    }


def doctor_part(doctor: Doctor) -> Values:
    """What the doctor finds."""
    return {"findings": list(doctor())}


def question_page(look: Look) -> Values:
    """A question in SQL and its answer."""
    question = look.text("q")
    tables = [
        {
            "name": table.name,
            "about": table.about,
            "columns": [
                {"name": c.name, "type": str(c.type), "about": c.about} for c in table.columns
            ],
        }
        for table in TABLES.values()
    ]
    values: Values = {
        "title": "SQL",
        "live": False,
        "question": question or _EXAMPLE,
        "tables": tables,
        "names": [],
        "rows": [],
        "numbers": set(),
        "problem": "",
        "note": "",
    }
    if not question:
        return values
    began = time.monotonic()
    try:
        found = SystemTables(look.workspace).ask_within(question, _limits(look.workspace.config))
    except (UserError, MillraceError) as error:
        return values | {"problem": str(error)}
    took = page_texts.seconds(time.monotonic() - began)
    answer = found.rows
    more = f", the first {_ANSWER_ROWS} are shown" if answer.num_rows > _ANSWER_ROWS else ""
    least = " or more" if found.is_cut else ""
    shown = answer.slice(0, _ANSWER_ROWS)
    return values | {
        "names": list(answer.schema.names),
        "rows": list(zip(*(column.to_pylist() for column in shown.columns), strict=True)),
        "numbers": {f.name for f in answer.schema if _is_number(f.type)},
        "note": f"{answer.num_rows:,} rows{least} in {took}{more}.",
    }


def _limits(config: Config) -> QuestionLimits:
    return QuestionLimits(
        seconds=ms(config.page_question_wait) / 1000,
        memory_bytes=config.page_question_bytes,
        rows_max=config.page_question_rows_max,
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )
