"""How long a workspace keeps what it no longer needs: the document `retention.json`.

Invariant: a rule that was recorded is carried out until another one is recorded, whatever
application runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from millrace import durations
from millrace.durations import Duration, milliseconds
from millrace.errors import UserError
from millrace.journal.core.journal_names import under
from millrace.names import shown
from millrace.pipeline.core import hops
from millrace.storage import documents
from millrace.storage.documents import Document
from millrace.storage.store import Store

RETENTION_FILE: Final = "retention.json"
_VERSION: Final = 1
INTERNAL: Final = (hops.ROOT, "millrace")
"""Journals of jobs and of coordinated reads: no rule for journals is about them."""
KeepByName = tuple[tuple[str, int], ...]
"""Milliseconds by name, or prefix of names; "" is for all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a workspace keeps shuffles, rows of journals, and rows of jobs.

    Given to `millrace.open`, which records it. The owner of the journals removes what is older, in
    the background, also when another application runs.

    Args:
        shuffles: runs that have ended, and rows of `from_arrow`. What a later run relies on stays.
        journals: rows, by the time they were written. One time for all journals, or one for each
            prefix of names.
        jobs: rows that all steps of their job have read, and large values that no row refers to.
            One time for all jobs, or one for each name.
        drop_unread: remove rows of journals also if a consumer group has not read them yet, or a
            reader has the journal open. They get an error, and no rows.

    Example:
        >>> keep = mr.Retention(shuffles="7d", journals={"acme/orders": "30d"}, jobs="7d")
        >>> with mr.open("./mill", retention=keep) as ws:
        ...     ws.retention().journals
        {'acme/orders': '30d'}
    """

    shuffles: Duration | None = None
    journals: Duration | Mapping[str, Duration] | None = None
    jobs: Duration | Mapping[str, Duration] | None = None
    drop_unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """A `Retention` that was checked."""

    shuffles_ms: int | None = None
    journals: KeepByName = ()
    jobs: KeepByName = ()
    drop_unread: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ever removed."""
        return self.shuffles_ms is None and not self.journals and not self.jobs

    def of_journal(self, name: str) -> int | None:
        """How long a journal keeps its rows; None for ever. The longest prefix counts."""
        if any(under(root, name) for root in INTERNAL):
            return None
        fitting = [(len(prefix), keep) for prefix, keep in self.journals if under(prefix, name)]
        return max(fitting)[1] if fitting else None

    def of_job(self, name: str) -> int | None:
        """How long a job keeps rows that were read; None for ever."""
        keep = dict(self.jobs)
        return keep.get(name, keep.get(""))


def checked(retention: object) -> RetentionRules:
    """The rules of what a user gave."""
    if not isinstance(retention, Retention):
        raise UserError(
            f"retention is {shown(retention)}\n"
            '  to fix: give mr.Retention(shuffles="7d", journals={"orders": "30d"}, jobs="7d")'
        )
    journals = _by_name(retention.journals, "journals")
    for prefix, _ in journals:
        if any(under(root, prefix) for root in INTERNAL) and prefix:
            raise UserError(
                f"retention: the journals under {prefix!r} are of jobs or coordinated reads\n"
                "  to fix: give the time of a job in jobs=; checkpoints are kept small as they are"
            )
    shuffles = retention.shuffles
    return RetentionRules(
        shuffles_ms=None if shuffles is None else milliseconds(shuffles, "retention: shuffles"),
        journals=journals,
        jobs=_by_name(retention.jobs, "jobs"),
        drop_unread=bool(retention.drop_unread),
    )


def as_given(rules: RetentionRules) -> Retention:
    """The rules as a user may give them."""
    return Retention(
        shuffles=None if rules.shuffles_ms is None else _text(rules.shuffles_ms),
        journals=_given(rules.journals),
        jobs=_given(rules.jobs),
        drop_unread=rules.drop_unread,
    )


def read_rules(store: Store) -> RetentionRules:
    """What is recorded; nothing is removed if there is no such file."""
    data = store.read(RETENTION_FILE)
    if data is None:
        return RetentionRules()
    return documents.load(
        data,
        _decoded,
        where=store.path(RETENTION_FILE),
        what="the retention of a workspace",
        to_fix="give retention= to millrace.open again, or remove the file",
        version=_VERSION,
    )


def write_rules(store: Store, rules: RetentionRules) -> None:
    """Record rules, over those of before."""
    if read_rules(store) == rules and store.exists(RETENTION_FILE):
        return
    store.replace(
        RETENTION_FILE,
        documents.seal(
            {
                "version": _VERSION,
                "shuffles_ms": rules.shuffles_ms,
                "journals": [list(rule) for rule in rules.journals],
                "jobs": [list(rule) for rule in rules.jobs],
                "drop_unread": rules.drop_unread,
            },
            indent=1,
        ),
    )


def _by_name(given: Duration | Mapping[str, Duration] | None, what: str) -> KeepByName:
    if given is None:
        return ()
    named = given if isinstance(given, Mapping) else {"": given}
    for name in named:
        if not isinstance(name, str):
            raise UserError(
                f"retention: {what} has a name that is no text\n  found: {shown(name)}\n"
                f'  to fix: give {what}={{"name": "7d"}}'
            )
    return tuple(
        sorted((name, milliseconds(keep, f"retention: {what}")) for name, keep in named.items())
    )


def _given(rules: KeepByName) -> Duration | dict[str, Duration] | None:
    if not rules:
        return None
    if [name for name, _ in rules] == [""]:
        return _text(rules[0][1])
    return {name: _text(keep) for name, keep in rules}


def _text(keep_ms: int) -> str:
    return durations.shown(keep_ms / 1000)


def _decoded(document: Document) -> RetentionRules:
    shuffles = document.fields.get("shuffles_ms")
    return RetentionRules(
        shuffles_ms=None if shuffles is None else document.whole("shuffles_ms"),
        journals=_rules(document.items("journals")),
        jobs=_rules(document.items("jobs")),
        drop_unread=bool(document.fields["drop_unread"]),
    )


def _rules(items: Sequence[object]) -> KeepByName:
    rules = []
    for item in items:
        match item:
            case [str(name), int(keep_ms)]:
                rules.append((name, keep_ms))
            case _:
                raise ValueError(f"a rule is {shown(item)}")
    return tuple(rules)
