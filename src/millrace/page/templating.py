"""Makes pages of templates. Everything that is put into one is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from millrace.page import page_texts
from millrace.version import __version__

ASSETS: Final = "/assets"
PAGES: Final = (
    ("Overview", "/"),
    ("Runs", "/runs"),
    ("Jobs", "/jobs"),
    ("Journals", "/journals"),
    ("Reads", "/reads"),
    ("Workspace", "/workspace"),
    ("SQL", "/ask"),
)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("millrace.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "number": page_texts.number,
        "bytes": page_texts.size,
        "seconds": page_texts.seconds,
        "rate": page_texts.rate,
        "times": page_texts.times,
        "percent": page_texts.percent,
        "dollars": page_texts.dollars,
        "moment": page_texts.moment,
        "cell": page_texts.cell,
        "tone": page_texts.tone,
        "ago": _ago,
    }
    made.globals |= {"asset": lambda name: f"{ASSETS}/{__version__}/{name}", "pages": PAGES}
    return made


@pass_context
def _ago(context: Context, value: datetime | int | None) -> str:
    """How long ago something was, when the page was made."""
    return page_texts.ago(context["now"], value)


def page(template: str, values: Mapping[str, Any]) -> str:
    """A page, or a part of one."""
    now = datetime.now(tz=UTC)
    defaults = {"now": now, "saved": None, "live": True, "here": "", "url": "", "where": ""}
    return _environment().get_template(template).render({**defaults, **values})


def compile_all() -> None:
    """Read and compile every template."""
    made = _environment()
    for name in made.list_templates(extensions=("html",)):
        made.get_template(name)


def style() -> str:
    """The style of all pages, for one that is saved."""
    return (files("millrace.page") / "assets" / "page.css").read_text(encoding="utf-8")
