"""What all pages have: the workspace, paging, and the words for what is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from millrace.errors import UserError
from millrace.system.job_reading import names_of_jobs
from millrace.system.resting_workspace import RestingWorkspace
from millrace.upkeep.journal_folder import NoJournals

PAGE_ROWS = 50
Values = dict[str, Any]


class NotThere(UserError):
    """What a page is asked for is not in the workspace."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a workspace: which page is wanted, with what it is asked."""

    workspace: RestingWorkspace
    asked: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A text of the query; empty if it is not given."""
        return self.asked.get(name, "").strip()

    def whole(self, name: str, default: int = 0) -> int:
        """A whole number of the query."""
        given = self.text(name)
        if not given:
            return default
        if not given.isascii() or not given.isdecimal() or len(given) > 19:  # noqa: PLR2004 - 64 bits
            raise UserError(
                f"{name} is {given!r}\n  found: no whole number\n  to fix: give one, as 0 or 1200"
            )
        return int(given)

    def page(
        self, path: str, rows: Sequence[Any], *, at: str = "at", total: int | None = None
    ) -> tuple[list[Any], Values | None]:
        """One list of a page: its rows from `at` on, and links to the others, None if all fit.

        `at` is the name that this list's place has in the query. With `total`, these are all rows
        that are shown, of so many.
        """
        begin = self.whole(at)
        shown = list(rows if total is not None else rows[begin : begin + PAGE_ROWS])
        count = len(rows) if total is None else total
        if count <= PAGE_ROWS and not begin:
            return shown, None
        others = {name: text for name, text in self.asked.items() if name != at}
        return shown, page_links(path, others, at=begin, rows=len(shown), total=count, by=at)

    def no_journals(self) -> str | None:
        """Why journals cannot be shown; None if they can."""
        kept = self.workspace.journals_are_in()
        if isinstance(kept, NoJournals):
            return f"Nothing to show: {kept.reason.removeprefix('journals: ')}."
        if not self.workspace.has_journals():
            return "No journal was made here yet."
        return None


def page_links(
    path: str, asked: Mapping[str, str], *, at: int, rows: int, total: int, by: str = "at"
) -> Values:
    """Links to the page before and the page behind, and where this one is."""

    def link(begin: int) -> str:
        return f"{path}?{urlencode({**asked, by: begin})}"

    shown = f"{at + 1:,} to {at + rows:,} of {total:,}" if rows else f"none of {total:,}"
    return {
        "text": shown,
        "before": link(max(0, at - PAGE_ROWS)) if at > 0 else None,
        "after": link(at + PAGE_ROWS) if at + rows < total else None,
    }


def check_job(look: Look, name: str) -> None:
    """Refuse the name of a job that never ran."""
    if name not in names_of_jobs(look.workspace):
        raise NotThere(f"there is no job {name!r}\n  to fix: choose one of those under Jobs")
