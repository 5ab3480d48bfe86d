"""The server of the pages: which address shows what. It only reads, but for one form.

Invariant: every answer is made of the workspace as it is at that moment; the only things that a
server remembers are runs that have ended, which change no more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from millrace.errors import MillraceError
from millrace.page.change_marks import AGAIN_S, LOOK_S, ChangeWatch
from millrace.page.exposition import exposed
from millrace.page.page_actions import FormRefused, PageActions, Retry
from millrace.page.page_gate import PageGate
from millrace.page.templating import ASSETS, page
from millrace.page.views import (
    job_views,
    journal_views,
    letter_views,
    read_views,
    run_views,
    step_views,
    workspace_views,
)
from millrace.page.views.look import Look, NotThere, Values
from millrace.page.views.workspace_views import Doctor
from millrace.system.metric_samples import MetricCollector
from millrace.system.resting_workspace import RestingWorkspace
from millrace.system.workspace_now import RunMemory
from millrace.version import __version__

_TYPES: Final = {"css": "text/css", "js": "text/javascript"}
_YEAR: Final = "public, max-age=31536000, immutable"

Show = Callable[[Look, Any], Values]


@dataclass(frozen=True, slots=True)
class PageSource:
    """What pages are made of."""

    workspace: RestingWorkspace
    doctor: Doctor | None = None
    retry: Retry | None = None
    """Gives dead letters back, where pages may do that: their server needs a token then."""
    memory: RunMemory = field(default_factory=RunMemory)
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the server ends: browsers that listen for changes are let go."""
    collector: MetricCollector = field(init=False)

    def __post_init__(self) -> None:
        """Scrapers share one collector."""
        object.__setattr__(self, "collector", MetricCollector(self.workspace))


def page_app(source: PageSource, token: str | None) -> Starlette:
    """The server's application."""
    actions = PageActions(source.retry, token) if source.retry and token else None
    routes = [
        Route(path, partial(_shown, source, template, here, show))
        for path, (template, here, show) in _pages(source, actions).items()
    ]
    return Starlette(
        routes=[
            *([] if actions is None else [_retried(source, actions)]),
            *routes,
            Route("/events", partial(_events, source, ChangeWatch(source.workspace))),
            Route(f"{ASSETS}/{{version}}/{{name}}", _asset),
            Route("/healthz", _healthy),
            Route("/readyz", partial(_ready, source)),
            Route("/metrics", partial(_metrics, source)),
        ],
        middleware=[Middleware(PageGate, token=token)],
        exception_handlers={HTTPException: partial(_not_found, source)},
    )


def _pages(source: PageSource, actions: PageActions | None) -> dict[str, tuple[str, str, Show]]:
    """Each address: its template, the page of the menu that it belongs to, and its values."""
    memory, has_doctor = source.memory, source.doctor is not None
    stage = "/runs/{run:int}/stages/{stage:int}"
    return {
        "/": (
            "overview.html",
            "Overview",
            lambda look, _: workspace_views.overview_page(look, memory),
        ),
        "/runs": ("runs.html", "Runs", lambda look, _: run_views.list_page(look, memory)),
        "/compare": ("compare.html", "Runs", lambda look, _: run_views.compare_page(look, memory)),
        "/runs/{run:int}": (
            "run.html",
            "Runs",
            lambda look, of: run_views.run_page(look, memory, of["run"]),
        ),
        stage: (
            "stage.html",
            "Runs",
            lambda look, of: run_views.stage_page(look, of["run"], of["stage"]),
        ),
        stage + "/keys/{part:int}": (
            "keys.html",
            "Runs",
            lambda look, of: run_views.keys_page(look, of["run"], of["stage"], of["part"]),
        ),
        **_journal_pages(actions),
        "/workspace": (
            "workspace.html",
            "Workspace",
            lambda look, _: workspace_views.workspace_page(look, has_doctor=has_doctor),
        ),
        "/workspace/disk": (
            "disk.html",
            "Workspace",
            lambda look, _: workspace_views.disk_part(look),
        ),
        "/workspace/gc": (
            "cleanup.html",
            "Workspace",
            lambda look, _: workspace_views.cleanup_part(look),
        ),
        "/workspace/doctor": ("doctor.html", "Workspace", lambda _look, _: _doctor(source)),
        "/ask": ("ask.html", "SQL", lambda look, _: workspace_views.question_page(look)),
    }


def _journal_pages(actions: PageActions | None) -> dict[str, tuple[str, str, Show]]:
    """The addresses of what lies in journals: jobs, reads and themselves."""
    seal = None if actions is None else actions.seal
    return {
        "/jobs": ("jobs.html", "Jobs", lambda look, _: job_views.list_page(look)),
        "/jobs/{job}": ("job.html", "Jobs", lambda look, of: job_views.job_page(look, of["job"])),
        "/jobs/{job}/steps/{step}": (
            "step.html",
            "Jobs",
            lambda look, of: step_views.step_page(look, of["job"], of["step"]),
        ),
        "/jobs/{job}/retry": (
            "retry.html",
            "Jobs",
            lambda look, of: letter_views.retry_page(look, of["job"], seal),
        ),
        "/journals": ("journals.html", "Journals", lambda look, _: journal_views.list_page(look)),
        "/journal/{journal:path}": (
            "journal.html",
            "Journals",
            lambda look, of: journal_views.journal_page(look, of["journal"]),
        ),
        "/reads": ("reads.html", "Reads", lambda look, _: read_views.list_page(look)),
        "/reads/{read:path}": (
            "read.html",
            "Reads",
            lambda look, of: read_views.read_page(look, of["read"]),
        ),
    }


async def _shown(
    source: PageSource, template: str, here: str, show: Show, request: Request
) -> Response:
    look = Look(source.workspace, dict(request.query_params))
    return await run_in_threadpool(_made, look, template, here, show, request)


def _made(look: Look, template: str, here: str, show: Show, request: Request) -> Response:
    where = look.workspace.store.root
    url = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    about = {"where": where, "here": here, "url": url}
    try:
        return HTMLResponse(page(template, about | show(look, request.path_params)))
    except NotThere as error:
        return _problem(about, "Not there", str(error), 404)
    except MillraceError as error:
        return _problem(about, "This page cannot be shown", str(error), 500)


def _retried(source: PageSource, actions: PageActions) -> Route:
    """The address that takes the one form that changes something."""

    async def retried(request: Request) -> Response:
        try:
            return await actions.retried(request)
        except MillraceError as error:
            about = {"where": source.workspace.store.root, "here": "Jobs", "url": request.url.path}
            status = 403 if isinstance(error, FormRefused) else 409
            return _problem(about, "Nothing was retried", str(error), status)

    return Route("/jobs/{job}/retry", retried, methods=["POST"])


def _problem(about: Values, title: str, text: str, status: int) -> Response:
    values = about | {"title": title, "text": text, "live": False}
    return HTMLResponse(page("problem.html", values), status)


def _doctor(source: PageSource) -> Values:
    if source.doctor is None:
        raise NotThere("no doctor looks from here\n  to fix: use `millrace doctor`")
    return workspace_views.doctor_part(source.doctor)


async def _not_found(source: PageSource, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    about = {"where": source.workspace.store.root, "here": "", "url": request.url.path}
    return _problem(about, "Not there", f"there is no page {request.url.path}", error.status_code)


async def _events(source: PageSource, watch: ChangeWatch, request: Request) -> Response:
    """Says that something changed, as server-sent events, until the browser goes away."""

    async def changes() -> AsyncIterator[str]:
        seen, silent = await run_in_threadpool(watch.mark), 0.0
        yield ": looking\n\n"
        while not (source.stopping.is_set() or await request.is_disconnected()):
            await asyncio.sleep(LOOK_S)
            silent += LOOK_S
            mark = await run_in_threadpool(watch.mark)
            if mark != seen or silent >= AGAIN_S:
                seen, silent = mark, 0.0
                yield "data: changed\n\n"

    return StreamingResponse(changes(), media_type="text/event-stream")


async def _asset(request: Request) -> Response:
    name, version = request.path_params["name"], request.path_params["version"]
    kind = _TYPES.get(name.rpartition(".")[2])
    there = files("millrace.page") / "assets" / name
    if version != __version__ or kind is None or "/" in name or not there.is_file():
        raise HTTPException(404)
    return Response(there.read_bytes(), media_type=kind, headers={"Cache-Control": _YEAR})


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _ready(source: PageSource, _request: Request) -> Response:
    """Whether the workspace, and the ledger if there is one, can be read now."""
    try:
        await run_in_threadpool(source.workspace.check_readable)
    except (MillraceError, OSError) as error:
        return PlainTextResponse(f"{error}\n", 503)
    return PlainTextResponse("ok\n")


async def _metrics(source: PageSource, request: Request) -> Response:
    """What is measured, for a scraper."""

    def text() -> tuple[bytes, str]:
        return exposed(source.collector.samples(), request.headers.get("accept", ""))

    body, media_type = await run_in_threadpool(text)
    return Response(body, media_type=media_type)
