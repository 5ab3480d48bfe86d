"""Finds the changes of a job since its earlier runs, and decides which steps to set back. Pure.

A run makes a record of its job when it starts. The next run compares its own record with those. The
identity of a step and of all steps before it counts (code of functions, columns, expressions,
keys, identity of sources). The way to run a step does not (workers, batches, retries, partitions).
A step that was left out for some runs is compared with the last run that had it.

Invariant: rows of the old and of the changed job are never mixed, unless the user asks for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from millrace.errors import JobChanged
from millrace.pipeline.core.job_model import OnChange
from millrace.pipeline.core.job_record import SOURCES, STATE_STEPS, JobPart, JobRecord
from millrace.pipeline.define.job_recording import TIME_ZONE, SetBack
from millrace.text import counted

_FIXED: Final = ("columns", "reads", "kind", "large")
"""Words of the identity that must be equal for old and new rows."""
_WORDS: Final = {"reads": "which rows it reads", "inputs": "what feeds it"}
_SINCE: Final = {
    "left out": "what feeds it, while it was left out",
    "kept again": "what it did before is out of date",
}
_SHOWN_MAX: Final = 200
_NOTHING: Final = SetBack()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A source, step or sink that has changed."""

    name: str
    kind: str
    what: Mapping[str, tuple[str, str]]
    """The old and the new value, for each word of the identity that differs."""

    @property
    def is_source(self) -> bool:
        """Whether it is a source."""
        return self.kind in SOURCES


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes of a job. True if they affect a part that ran before."""

    job: str
    changed: tuple[JobChange, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    affected: tuple[str, ...] = ()
    """Sources and kept steps that ran before and would give other results now, in order."""
    stuck: tuple[str, ...] = ()
    """Affected parts whose new rows cannot be added to their old rows."""
    unsure: tuple[str, ...] = ()
    """Affected parts that the last run did not keep: their earlier work is not counted."""

    def __bool__(self) -> bool:
        return bool(self.affected)


def compare(
    before: Sequence[JobRecord],
    after: JobRecord,
    *,
    same: Collection[str] = (),
    since: SetBack = _NOTHING,
) -> Changes:
    """The changes since the earlier runs.

    Args:
        before: the job in these runs, oldest first.
        after: the job as it is now.
        same: sources whose rows are unchanged, even if their identity differs.
        since: the parts that resets concerned since.
    """
    if not before:
        return Changes(job=after.job)
    before, after = _with_zones(before, after)
    last = {part.name: part for part in before[-1].parts}
    new = {part.name: part for part in after.parts}
    ran, lines = _that_ran(before, since.fresh)
    now = _lineages(after, {name: lines[name] for name in same if name in lines})
    met = {name: ran.get(name) or last.get(name) for name in new if name not in same}
    changes = [_change(old, new[name]) for name, old in met.items() if old is not None]
    other = {name for name, line in lines.items() if now.get(name, line) != line}
    # What was fused meanwhile and is kept again has rows of long ago.
    again = {
        name for name in ran if name in since.stale or (name in last and not last[name].is_kept)
    }
    affected = _affected(after, ran, other | again)
    changed = _that_matter(after, [change for change in changes if change is not None], affected)
    return Changes(
        job=after.job,
        changed=(*changed, *_unexplained(after, changed, affected, again)),
        added=tuple(name for name in new if name not in last),
        removed=tuple(name for name in last if name not in new),
        affected=affected,
        stuck=tuple(n for n in affected if n in again or _is_stuck(ran[n], new[n])),
        unsure=tuple(n for n in affected if n in again or n not in last),
    )


def decide(
    changes: Changes,
    on_change: OnChange,
    *,
    rows: Mapping[str, int],
    calls: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """The sources and steps to be set back, in order; raises `JobChanged` if the user must choose.

    Args:
        changes: what differs.
        on_change: what the user chose.
        rows: for each source and step, how many rows it has done.
        calls: for each step whose calls are recorded, how many it made.
    """
    made = calls or {}
    done = [n for n in changes.affected if rows.get(n) or made.get(n) or n in changes.unsure]
    if not done:
        return changes.affected
    stuck = [name for name in changes.stuck if name in done]
    if on_change == "fail" or (on_change == "continue" and stuck):
        raise JobChanged(refusal_text(changes, rows=rows, calls=made, stuck=stuck))
    return changes.affected if on_change == "restart" else ()


def refusal_text(
    changes: Changes, *, rows: Mapping[str, int], calls: Mapping[str, int], stuck: Sequence[str]
) -> str:
    """The text for a user who must choose."""
    lines = [f"job {changes.job!r} is not what it was when it last ran"]
    for change in changes.changed:
        lines += [
            f"  {_named(change)} changed: {_worded(word, *pair)}"
            for word, pair in change.what.items()
        ]
    lines += [f"  added: {', '.join(changes.added)}"] if changes.added else []
    lines += [f"  removed: {', '.join(changes.removed)}"] if changes.removed else []
    lines += [
        f"  would be done again: {_done(name, rows, calls, unsure=name in changes.unsure)}"
        for name in changes.affected
    ]
    lines += ["  to fix: write it as it was; or choose:"]
    lines += ["    job.run(on_change='restart') to do all this again"]
    if stuck:
        names = ", ".join(stuck)
        lines.append(f"    on_change='continue' cannot be: {names} cannot add to what is done")
    else:
        new = any(change.is_source for change in changes.changed)
        on = "take in what is new" if new else "go on as written"
        lines.append(f"    job.run(on_change='continue') to keep what is done and {on}")
    return "\n".join(lines)


def _that_ran(
    before: Sequence[JobRecord], fresh: Collection[str]
) -> tuple[dict[str, JobPart], dict[str, str]]:
    """All parts that a run ever kept, as of their last run, and their lineages."""
    ran: dict[str, JobPart] = {}
    lines: dict[str, str] = {}
    for record in before:
        lineages = _lineages(record, {})
        kept = [part for part in record.parts if part.is_kept and part.name not in fresh]
        ran |= {part.name: part for part in kept}
        lines |= {part.name: lineages[part.name] for part in kept}
    return ran, lines


def _with_zones(before: Sequence[JobRecord], after: JobRecord) -> tuple[list[JobRecord], JobRecord]:
    """The same records with a time zone each: a zone that was not recorded counts as equal."""
    earlier = [_with_zone(record, _zone_of(after)) for record in before]
    return earlier, _with_zone(after, _zone_of(earlier[-1]))


def _zone_of(record: JobRecord) -> str | None:
    zones = (part.identity.get(TIME_ZONE) for part in record.parts)
    return next((zone for zone in zones if zone is not None), None)


def _with_zone(record: JobRecord, zone: str | None) -> JobRecord:
    if zone is None or _zone_of(record) is not None:
        return record
    parts = (
        replace(part, identity={**part.identity, TIME_ZONE: zone})
        if _has_expression(part)
        else part
        for part in record.parts
    )
    return JobRecord(record.job, tuple(parts))


def _has_expression(part: JobPart) -> bool:
    return "condition" in part.identity or "expressions" in part.identity


def _lineages(record: JobRecord, known: Mapping[str, str]) -> dict[str, str]:
    """For each part, a digest of its identity and of all parts before it."""
    digests: dict[str, str] = {}
    for part in record.parts:
        before = [digests[name] for name in part.inputs]
        order = sorted(before) if part.kind == "union" else before
        line = json.dumps([part.kind, sorted(part.identity.items()), order])
        digest = hashlib.blake2b(line.encode(), digest_size=16).hexdigest()
        digests[part.name] = known.get(part.name, digest)
    return digests


def _change(old: JobPart, new: JobPart) -> JobChange | None:
    what: dict[str, tuple[str, str]] = {}
    if old.kind != new.kind:
        what["kind"] = (old.kind, new.kind)
    else:
        for word in dict.fromkeys([*new.identity, *old.identity]):
            pair = (old.identity.get(word, ""), new.identity.get(word, ""))
            if pair[0] != pair[1]:
                what[word] = pair
    if _inputs(old) != _inputs(new):
        what["inputs"] = (", ".join(_inputs(old)), ", ".join(_inputs(new)))
    if _moved(old, new):
        what["reads"] = (", ".join(sorted(old.prefixes)), ", ".join(sorted(new.prefixes)))
    return JobChange(name=new.name, kind=new.kind, what=what) if what else None


def _inputs(part: JobPart) -> list[str]:
    """The names of a part's inputs; sorted where their order does not matter."""
    return sorted(part.inputs) if part.kind == "union" else list(part.inputs)


def _moved(old: JobPart, new: JobPart) -> bool:
    """Whether a part would read rows that it has done again, from other journals."""
    fewer, more = set(old.prefixes) - set(new.prefixes), set(new.prefixes) - set(old.prefixes)
    return old.is_kept and new.is_kept and bool(fewer) and bool(more)


def _affected(
    after: JobRecord, ran: Mapping[str, JobPart], other: Collection[str]
) -> tuple[str, ...]:
    """Parts that ran before and have another identity or other journals now, and their readers."""
    reached: set[str] = set()
    for part in after.parts:
        old = ran.get(part.name)
        moved = old is not None and _moved(old, part)
        if (part.is_kept and part.name in other) or moved or reached & set(part.inputs):
            reached.add(part.name)
    return tuple(p.name for p in after.parts if p.is_kept and p.name in reached and p.name in ran)


def _that_matter(
    after: JobRecord, changes: Sequence[JobChange], affected: Sequence[str]
) -> tuple[JobChange, ...]:
    """The changes of the affected parts, and of the parts before them."""
    relevant = {*affected, *(other for name in affected for other in after.before(name))}
    return tuple(change for change in changes if change.name in relevant)


def _unexplained(
    after: JobRecord,
    changes: Sequence[JobChange],
    affected: Sequence[str],
    again: Collection[str],
) -> Iterator[JobChange]:
    """Changes of parts that are affected only because runs left them out or did not keep them."""
    reached = {change.name for change in changes}
    for part in after.parts:
        if part.name in reached or reached & set(part.inputs):
            reached.add(part.name)
        elif part.name in affected:
            reached.add(part.name)
            what = "kept again" if part.name in again else "left out"
            yield JobChange(name=part.name, kind=part.kind, what={what: ("", "")})


def _is_stuck(old: JobPart, new: JobPart) -> bool:
    change = _change(old, new)
    if change is not None and new.kind in STATE_STEPS:
        return True  # A state that was made in one way cannot go on in another.
    words = set() if change is None else set(change.what) & set(_FIXED)
    return bool(words - {"columns"} if new.kind == "sink" else words)


def _named(change: JobChange) -> str:
    return f"source {change.name!r}" if change.is_source else f"step {change.name!r}"


def _worded(word: str, was: str, now: str) -> str:
    if word in _SINCE:
        return _SINCE[word]
    if word == "function":
        return "its function"
    if word == "files":  # How many, before the digest; datasets have the digest alone.
        was, now = was.rpartition(" ")[0], now.rpartition(" ")[0]
    if max(len(was), len(now)) > _SHOWN_MAX or word == "query" or was == now:
        return f"its {word}"
    return f"{_WORDS.get(word, f'its {word}')}, was {was or 'none'}, is {now or 'none'}"


def _done(name: str, rows: Mapping[str, int], calls: Mapping[str, int], *, unsure: bool) -> str:
    if unsure and not rows.get(name):
        return f"{name} (it ran before)"
    paid = f", {counted(calls[name], 'call')} made" if calls.get(name) else ""
    return f"{name} ({counted(rows.get(name, 0), 'row')} done{paid})"
