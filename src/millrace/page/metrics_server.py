"""Serves the counts of this process to a scraper: for owners, agents and jobs that have no pages.

Invariant: only counts are served, behind the gate that pages have.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from millrace.metrics import process_reports
from millrace.metrics.counts import counted
from millrace.page.exposition import exposed
from millrace.page.page_gate import PageGate
from millrace.page.page_server import WebServer


def start_metrics(host: str, port: int, token: str | None = None) -> WebServer:
    """Serve what this process counts from now on; it is not reported in workspaces then."""
    process_reports.serve_own()
    server = WebServer(_app, host, port, token)
    server.start()
    return server


def _app(token: str | None) -> Starlette:
    routes = [Route("/metrics", _metrics), Route("/healthz", _healthy)]
    return Starlette(routes=routes, middleware=[Middleware(PageGate, token=token)])


async def _metrics(request: Request) -> Response:
    samples = counted(process_reports.process_name())
    body, media_type = exposed(samples, request.headers.get("accept", ""))
    return Response(body, media_type=media_type)


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok\n")
