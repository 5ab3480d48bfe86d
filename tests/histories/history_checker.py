"""Judges a history of journals by what its clients asked, were told and saw. It knows no product.

Every row has a number that nobody else uses. Clients write down what they are about to do, what
they were told, and what they read, with times of one clock. `problems` compares that with what is
found at the end.

The laws:
1. A row is there once, in the journal it was written to, and only if somebody asked for it.
2. An acknowledged request is there; a refused one is not.
3. A request is there as a whole, in all of its journals, or not at all.
4. Rows of a request keep their order, and their offsets are those that were acknowledged.
5. A request that was acknowledged before another one began comes first.
6. A reader finds what is there at the end, without gaps: no row appears in front of its place.
7. What was acknowledged or seen is seen by every later reader, in all journals of the request.
8. Of a journal that a group copies, each row up to the group's offset was copied, once, in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Event = Mapping[str, Any]


@dataclass(slots=True)
class Request:
    """What a client asked for, and what became of it."""

    name: str
    rows: dict[str, list[int]]
    begun_at: float
    is_stepwise: bool
    """Whether it becomes visible journal by journal, in the order of its commits."""
    acked_at: float | None = None
    is_refused: bool = False
    first: dict[str, int] = field(default_factory=dict)
    """The offsets that were acknowledged."""


@dataclass(slots=True)
class JournalAtTheEnd:
    """What is found at the end."""

    start: int
    offsets: list[int]
    values: list[int]
    place: dict[int, int] = field(default_factory=dict)
    """The offset of each row."""


@dataclass(slots=True)
class History:
    """All that was written down, put in order."""

    requests: dict[str, Request] = field(default_factory=dict)
    reads: list[Event] = field(default_factory=list)
    journals: dict[str, JournalAtTheEnd] = field(default_factory=dict)
    copies: list[Event] = field(default_factory=list)
    writer_of: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Request and journal of each row."""


def problems(events: Iterable[Event]) -> list[str]:
    """Everything that breaks a law; nothing for a history that keeps them."""
    history = _history(events)
    laws = (_rows, _requests, _order, _reads, _visible, _copies)
    return [problem for law in laws for problem in law(history)]


def _history(events: Iterable[Event]) -> History:
    made = History()
    for event in events:
        match event["event"]:
            case "begin":
                request = Request(
                    event["request"],
                    {name: list(values) for name, values in event["rows"].items()},
                    event["at"],
                    event.get("stepwise", False),
                )
                made.requests[request.name] = request
                for journal, values in request.rows.items():
                    made.writer_of.update(dict.fromkeys(values, (request.name, journal)))
            case "acked":
                request = made.requests[event["request"]]
                request.acked_at, request.first = event["at"], dict(event.get("first", {}))
            case "refused":
                made.requests[event["request"]].is_refused = True
            case "read":
                made.reads.append(event)
            case "final":
                offsets, values = event["offsets"], event["values"]
                place = dict(zip(values, offsets, strict=True))
                made.journals[event["journal"]] = JournalAtTheEnd(
                    event["start"], list(offsets), list(values), place
                )
            case "copied":
                made.copies.append(event)
            case "unknown" | "told":
                pass
            case other:
                raise AssertionError(f"an event of an unknown kind: {other}")
    return made


def _rows(history: History) -> Iterator[str]:
    copies = {copy["to"] for copy in history.copies}
    for name, journal in history.journals.items():
        if any(before >= after for before, after in pairwise(journal.offsets)):
            yield f"offsets of {name} do not rise"
        if len(journal.place) != len(journal.values):
            twice = sorted({v for v in journal.values if journal.values.count(v) > 1})
            yield f"rows are twice in {name}: {twice[:5]}"
        if name in copies:
            continue
        for value in journal.values:
            asked, where = history.writer_of.get(value, (None, None))
            if where != name:
                yield f"row {value} is in {name}, and was asked for {asked} in {where}"


def _requests(history: History) -> Iterator[str]:
    for request in history.requests.values():
        there: set[str] = set()
        missing: set[str] = set()
        for name, values in request.rows.items():
            journal = history.journals[name]
            places = [journal.place.get(value) for value in values]
            known = [place for place in places if place is not None]
            if not known and journal.start:
                continue  # It may have been truncated; its copy is looked at.
            (there if known else missing).add(name)
            # What is gone from the front may have been truncated.
            is_cut = places[-1] is None or not journal.start
            if known and len(known) != len(values) and is_cut:
                yield f"half of {request.name} is in {name}: {len(known)} of {len(values)} rows"
            if known != sorted(known):
                yield f"rows of {request.name} are in another order in {name}"
            first = request.first.get(name)
            if first is not None:
                offsets = range(max(first, journal.start), first + len(values))
                if known != list(offsets):
                    yield f"{request.name} was told offset {first} in {name}, found {known[:1]}"
        if there and missing:
            yield f"{request.name} is in {sorted(there)} and not in {sorted(missing)}"
        if request.acked_at is not None and missing:
            yield f"{request.name} was acknowledged, and is not in {sorted(missing)}"
        if request.is_refused and there:
            yield f"{request.name} was refused, and is in {sorted(there)}"


def _order(history: History) -> Iterator[str]:
    """Requests that did not overlap are in the order of time."""
    for name, journal in history.journals.items():
        spans: list[tuple[int, int, Request]] = []
        for request in history.requests.values():
            places = [journal.place.get(value) for value in request.rows.get(name, ())]
            known = [place for place in places if place is not None]
            if known and not request.is_stepwise:
                spans.append((min(known), max(known), request))
        spans.sort(key=lambda span: span[0])
        # From the end: the earliest acknowledgement of all that come later.
        earliest: tuple[float, str] | None = None
        for _, _, request in reversed(spans):
            if earliest is not None and earliest[0] < request.begun_at:
                yield (
                    f"{earliest[1]} was acknowledged before {request.name} began, and comes after "
                    f"it in {name}"
                )
            acked = request.acked_at
            if acked is not None and (earliest is None or acked < earliest[0]):
                earliest = (acked, request.name)


def _reads(history: History) -> Iterator[str]:
    for read in history.reads:
        journal = history.journals[read["journal"]]
        begin = max(read["from"], journal.start)
        found = [
            (offset, value)
            for offset, value in zip(read["offsets"], read["values"], strict=True)
            if offset >= begin
        ]
        first, last = (bisect_left(journal.offsets, at) for at in (begin, read["next"]))
        some = slice(first, max(first, last))
        expected = list(zip(journal.offsets[some], journal.values[some], strict=True))
        if found != expected:
            yield (
                f"{read['who']} read {read['journal']} from {read['from']} to {read['next']}: "
                f"{_difference(found, expected)}"
            )


def _difference(found: Sequence[object], expected: Sequence[object]) -> str:
    lacking = [row for row in expected if row not in set(found)]
    added = [row for row in found if row not in set(expected)]
    return f"not seen: {lacking[:3]}, seen and not there: {added[:3]}"


def _visible(history: History) -> Iterator[str]:
    known = _known_to_be_visible(history)
    for read in history.reads:
        if not read["is_end"]:
            continue
        seen = known.get(read["journal"], [])
        before = bisect_left(seen, read["at"], key=lambda entry: entry[0])
        if before and read["next"] <= seen[before - 1][1]:
            yield (
                f"{read['who']} read {read['journal']} to its end at {read['next']}, without "
                f"{seen[before - 1][2]}, which was visible before"
            )


def _known_to_be_visible(history: History) -> dict[str, list[tuple[float, int, str]]]:
    """Of each journal, by time: which offset readers must come past from then on, and why."""
    known: dict[str, list[tuple[float, int, str]]] = {}

    def note(request: Request, at: float | None) -> None:
        # Stepwise ones are hidden by others that are open in front of them.
        if at is None or request.is_stepwise:
            return
        for name, values in request.rows.items():
            last = history.journals[name].place.get(values[-1])
            if last is not None:
                known.setdefault(name, []).append((at, last, request.name))

    for request in history.requests.values():
        note(request, request.acked_at)
    for read in history.reads:
        asked = {history.writer_of.get(value, ("", ""))[0] for value in read["values"]}
        for name in asked - {""}:
            note(history.requests[name], read["until"])
        seen = (read["until"], read["next"] - 1, f"what {read['who']} saw")
        known.setdefault(read["journal"], []).append(seen)
    return {name: _farthest(entries) for name, entries in known.items()}


def _farthest(entries: list[tuple[float, int, str]]) -> list[tuple[float, int, str]]:
    """The entries by time, each with the highest offset so far."""
    rising: list[tuple[float, int, str]] = []
    for at, last, what in sorted(entries):
        if not rising or last > rising[-1][1]:
            rising.append((at, last, what))
    return rising


def _copies(history: History) -> Iterator[str]:
    for copy in history.copies:
        source, target = history.journals[copy["from"]], history.journals[copy["to"]]
        offset = copy["offset"]
        expected = [
            value
            for place, value in zip(source.offsets, source.values, strict=True)
            if place < offset
        ]
        # The first ones may have been truncated at the source.
        first = len(target.values) - len(expected)
        if first < 0 or target.values[first:] != expected or (first and not source.start):
            yield (
                f"{copy['to']} has {len(target.values)} rows; {copy['from']} has {len(expected)} "
                f"of them up to {offset}, from {source.start} on"
            )
        copied = set(target.values)
        for value in copied:
            if history.writer_of.get(value, (None, None))[1] != copy["from"]:
                yield f"{copy['to']} has row {value}, which nobody wrote to {copy['from']}"
        for request in history.requests.values():
            values = request.rows.get(copy["from"], [])
            there = [value in copied or value in source.place for value in values]
            if request.acked_at is not None and not all(there):
                yield f"{request.name} was acknowledged, and is neither in {copy} nor at its source"
            if request.is_refused and any(there):
                yield f"{request.name} was refused, and was copied to {copy['to']}"
