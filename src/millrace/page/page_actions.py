"""The one thing that a page does: give dead letters back to their steps.

Invariant: nothing is done without the server's token, a form that this server made, and a request
that its own page sent. The page before it says what will happen, and asks.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from millrace.errors import UserError

Retry = Callable[[str, str | None, str | None], dict[str, int]]
"""Gives back the dead letters of a job, of a step or a class of errors alone; the rows of each."""
ACTIONS: Final = re.compile(r"/jobs/[^/]+/retry")
"""Addresses that take a POST."""
_BODY_BYTES_MAX: Final = 16_384


class FormRefused(UserError):
    """A form that this server did not make, or that another site sent."""


@dataclass(frozen=True, slots=True)
class PageActions:
    """What pages may do, and how a form shows that it is this server's."""

    retry: Retry
    token: str

    @property
    def seal(self) -> str:
        """The value of forms that this server made; another site cannot know it."""
        return hmac.new(self.token.encode(), b"forms of the pages", hashlib.sha256).hexdigest()

    async def retried(self, request: Request) -> Response:
        """Give back what a form names; leads to the page of the job."""
        form = await _form(request)
        _check_origin(request)
        if not hmac.compare_digest(form.get("seal", "").encode(), self.seal.encode()):
            raise FormRefused(
                "this form is not one of this server\n  found: another seal, or none\n"
                "  to fix: open the page of the job again, and retry from there"
            )
        job = str(request.path_params["job"])
        counts = await run_in_threadpool(
            self.retry, job, form.get("step") or None, form.get("kind") or None
        )
        asked = urlencode({"retried": sum(counts.values())})
        return RedirectResponse(f"/jobs/{quote(job)}?{asked}", 303)


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; the last value of each."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _BODY_BYTES_MAX:
            raise FormRefused(
                f"this form is too large\n  found: more than {_BODY_BYTES_MAX:,} bytes\n"
                "  to fix: open the page of the job again"
            )
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


def _check_origin(request: Request) -> None:
    """Browsers say which site a form is of; programs say nothing."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise FormRefused(
            f"this form was sent by another site\n  found: {origin!r}\n"
            "  to fix: open the page of the job, and retry from there"
        )
