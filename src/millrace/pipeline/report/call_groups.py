"""The attempts of paid calls by model and by error, each with an example row.

They are counted from the charges of a step. A report keeps how far they were read, so the next one
reads on from there. Invariant: each charge is counted once in a report, whatever was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from millrace.journal.broker import Broker
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.core.job_record import JobRecord
from millrace.pipeline.paid.spend import NANO_USD

GROUPS_MAX: Final = 100
"""With more of them, errors of one class are one group."""
_NUMBERS: Final = re.compile(r"\d+")
_COUNTS: Final = ("tokens_in", "tokens_cached", "tokens_out", "nano_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Attempts of calls to one model that ended alike."""

    model: str = ""
    error: str = ""
    """The class of their error; empty if they had none."""
    message: str = ""
    """The first line of the first one's text. Texts that differ in numbers alone are alike."""
    attempts: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    nano_usd: int = 0
    """What they cost, in billionths of a dollar: sums are exact."""
    journal: str = ""
    offset: int = 0
    """The first row of the first of them, and its journal."""

    @property
    def usd(self) -> float:
        """Dollars."""
        return self.nano_usd / NANO_USD

    def plus(self, other: CallGroup) -> CallGroup:
        """Both; the example is that of this one."""
        names = ("attempts", *_COUNTS)
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, **sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroups:
    """The groups of a step, and how far its charges were read for them."""

    journal_id: int = 0
    offset: int = 0
    groups: tuple[CallGroup, ...] = field(default=())

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CallGroups:
        """As a report has them."""
        groups = tuple(CallGroup(**each) for each in document["groups"])
        return cls(journal_id=document["journal_id"], offset=document["offset"], groups=groups)


def groups_of(
    broker: Broker, record: JobRecord, events: Sequence[JobEvent]
) -> dict[str, CallGroups]:
    """The groups of each step with paid calls; `events` have the report of the last run."""
    charged = {hops.charges_journal(record.job, p.name): p.name for p in record.hops if p.expensive}
    known = _of_last_report(events)
    found = {}
    for info in broker.list(f"{hops.ROOT}/{record.job}"):
        name = charged.get(info.name)
        if name is None:
            continue
        before = known.get(name)
        if before is None or before.journal_id != int(info.id):
            before = CallGroups(journal_id=int(info.id))
        found[name] = _read_on(broker, info.name, before)
    return found


def _of_last_report(events: Sequence[JobEvent]) -> dict[str, CallGroups]:
    for event in reversed(events):
        if event.happened is JobEventKind.ENDED:
            steps = event.detail.get("report", {}).get("steps", ())
            given = {step["name"]: step.get("groups") for step in steps}
            return {name: CallGroups.from_json(each) for name, each in given.items() if each}
    return {}


def _read_on(broker: Broker, journal: str, before: CallGroups) -> CallGroups:
    groups, offset = list(before.groups), max(before.offset, int(broker.start_offset(journal)))
    while True:
        fetched = broker.read(journal, offset)
        if fetched.num_rows:
            groups = merged([*groups, *_grouped(fetched.rows())])
        if fetched.next_offset == offset:
            return replace(before, offset=offset, groups=tuple(groups))
        offset = int(fetched.next_offset)


def _grouped(charges: pa.Table) -> Iterable[CallGroup]:
    """The charges of some rows by model, class and text; the first row of each is the example."""
    sums = [(name, "sum") for name in _COUNTS]
    firsts = [("journal", "first"), ("offset", "first")]
    grouped = charges.group_by(["model", "error", "message"], use_threads=False).aggregate(
        [*sums, *firsts, ([], "count_all")]
    )
    for row in grouped.to_pylist():
        yield CallGroup(
            model=row["model"],
            error=row["error"],
            message=(row["message"].splitlines() or [""])[0],
            attempts=row["count_all"],
            journal=row["journal_first"],
            offset=row["offset_first"],
            **{name: row[f"{name}_sum"] for name in _COUNTS},
        )


def merged(groups: Iterable[CallGroup]) -> list[CallGroup]:
    """Groups that are alike as one; at most about `GROUPS_MAX` of them."""
    alike: dict[tuple[str, str, str], CallGroup] = {}
    for group in groups:
        key = (group.model, group.error, _NUMBERS.sub("#", group.message))
        if key not in alike and len(alike) >= GROUPS_MAX:
            key = (group.model, group.error, "")
        known = alike.get(key)
        alike[key] = group if known is None else known.plus(group)
    return list(alike.values())


def by_model(known: CallGroups | None) -> tuple[CallGroup, ...]:
    """A group for each model, the dearest first."""
    groups = () if known is None else known.groups
    models: dict[str, CallGroup] = {}
    for group in groups:
        whole = replace(group, error="", message="")
        models[group.model] = models[group.model].plus(whole) if group.model in models else whole
    return tuple(sorted(models.values(), key=lambda group: -group.nano_usd))


def by_error(known: CallGroups | None) -> tuple[CallGroup, ...]:
    """The groups with an error, those with most attempts first."""
    groups = () if known is None else known.groups
    failed = [group for group in groups if group.error]
    return tuple(sorted(failed, key=lambda group: -group.attempts))
