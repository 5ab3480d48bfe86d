"""Who may see the pages: this host's own users, or those who have the token.

Invariant: a page is shown to loopback only, or to a request with the token. A request under a name
that is not this server's is refused, and so is one that another site's page makes: no site in a
browser can ask in its user's name.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.page.page_actions import ACTIONS

COOKIE: Final = "millrace"
TOKEN: Final = "token"  # noqa: S105 - the name of a parameter
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this host alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, slots=True)
class PageGate:
    """Lets requests through, or refuses them. Without a token: loopback alone."""

    app: ASGIApp
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request: refused, or answered with the headers that keep browsers strict."""
        if scope["type"] != "http":
            return
        request = Request(scope)

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if "cache-control" not in headers:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        answer: ASGIApp = self._refused(request) or self.app
        await answer(scope, receive, send_strict)

    def _refused(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD") and not self._may_act(request):
            return PlainTextResponse("pages are only read: GET\n", 405)
        if _is_of_another_site(request):
            return PlainTextResponse(
                "this page was asked for by another site's page\n"
                "  to fix: open its address, or follow a link to it\n",
                403,
            )
        if self.token is None:
            name = _host_name(request.headers.get("host", ""))
            if name not in _LOCAL_NAMES:
                return PlainTextResponse(
                    f"this page is for this host alone\n  found: a request for {name!r}\n"
                    "  to fix: open it as http://127.0.0.1\n",
                    403,
                )
            return None
        return self._without_token(request, self.token)

    def _may_act(self, request: Request) -> bool:
        """Whether a form may be sent there; who sends it is looked at as for pages."""
        is_action = ACTIONS.fullmatch(request.url.path) is not None
        return request.method == "POST" and is_action and self.token is not None

    def _without_token(self, request: Request, token: str) -> Response | None:
        given = request.query_params.get(TOKEN)
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            # From here on a cookie has it, so that it stands in no history and no link.
            rest = [(k, v) for k, v in parse_qsl(request.url.query) if k != TOKEN]
            # Two slashes in front would be the name of another host.
            where = "/" + request.url.path.lstrip("/") + (f"?{urlencode(rest)}" if rest else "")
            answer = RedirectResponse(where, 303)
            name = _cookie_name(request)
            answer.set_cookie(name, token, httponly=True, samesite="strict", path="/")
            return answer
        known = _cookie(request) or _bearer(request)
        if known is not None and hmac.compare_digest(known.encode(), token.encode()):
            return None
        return PlainTextResponse(
            "this page needs its token\n"
            "  to fix: open the address that `millrace ui` printed, with ?token=...\n",
            401,
        )


def _is_of_another_site(request: Request) -> bool:
    """Whether a picture, script or form of another site asks: a question in SQL costs its time."""
    headers = request.headers
    site, is_opened = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode") == "navigate"
    is_whole = is_opened and headers.get("sec-fetch-dest") == "document"
    return site == "cross-site" and not (is_whole and request.method == "GET")


def _cookie_name(request: Request) -> str:
    """Browsers send a cookie to all ports of a host: each server has its own."""
    server = request.scope.get("server") or ("", 0)
    return f"{COOKIE}-{server[1]}"


def _cookie(request: Request) -> str | None:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(_cookie_name(request))
    except CookieError:
        return None
    return None if found is None else found.value


def _bearer(request: Request) -> str | None:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else None


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
