"""How a person sees a job of a scheduler: a link, or the command that saves its page. Pure."""

from __future__ import annotations

import shlex
from urllib.parse import quote, urlsplit

from millrace.errors import UserError


def page_of(workspace: str, job: str, ui_url: str | None) -> str:
    """The job's page where `millrace ui` serves the workspace, or the command that saves it."""
    if ui_url is None:
        return shlex.join(["millrace", "ui", "export", workspace, job])
    return f"{ui_url.rstrip('/')}/jobs/{quote(job, safe='')}"


def check_ui_url(given: str | None) -> str | None:
    """Refuse what is no address of pages, or has a token, which would be in every log."""
    if given is None:
        return None
    parts = urlsplit(given)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UserError(
            f"ui_url is the address at which `millrace ui` serves the workspace\n"
            f"  found: {given!r}\n"
            '  to fix: give a url, as "https://mill.example.com"'
        )
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise UserError(
            "ui_url has more than an address\n"
            "  found: a query, a fragment or a user, which logs would show\n"
            "  to fix: give it without; the browser keeps the token after the first visit"
        )
    return given
