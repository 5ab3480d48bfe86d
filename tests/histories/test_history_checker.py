"""The judge of histories finds every mistake that is planted in a history without one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.histories.history_checker import problems

Events = list[dict[str, Any]]


def begin(request: str, at: float, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - a line
    rows = more.pop("rows")
    return {"event": "begin", "request": request, "at": at, "rows": rows, **more}


def acked(request: str, at: float, **first: int) -> dict[str, Any]:
    return {"event": "acked", "request": request, "at": at, "first": first}


def read(journal: str, at: float, begin: int, offsets: list[int], values: list[int]) -> Any:  # noqa: ANN401
    end = offsets[-1] + 1 if offsets else begin
    return {
        "event": "read",
        "who": "reader",
        "journal": journal,
        "at": at,
        "until": at + 0.5,
        "from": begin,
        "offsets": offsets,
        "values": values,
        "next": end,
        "is_end": True,
    }


def final(journal: str, offsets: list[int], values: list[int], start: int = 0) -> dict[str, Any]:
    return {
        "event": "final",
        "journal": journal,
        "start": start,
        "offsets": offsets,
        "values": values,
    }


def history() -> Events:
    """Requests of all kinds, and what is right to see of them."""
    return [
        begin("one", 1, rows={"a": [10, 11]}),
        acked("one", 2, a=0),
        read("a", 2.2, 0, [0, 1], [10, 11]),
        begin("two", 3, rows={"a": [20], "b": [21, 22]}),
        acked("two", 4, a=2, b=0),
        read("a", 5, 2, [2], [20]),
        read("b", 5, 0, [0, 1], [21, 22]),
        begin("lost", 6, rows={"a": [30], "b": [31]}),
        {"event": "unknown", "request": "lost"},
        begin("there", 7, rows={"a": [40], "b": [41]}),
        {"event": "unknown", "request": "there"},
        begin("no", 8, rows={"b": [50]}),
        {"event": "refused", "request": "no"},
        begin("steps", 9, rows={"p": [60, 61], "q": [62]}, stepwise=True),
        acked("steps", 10),
        begin("source", 11, rows={"s": [70, 71, 72, 73]}),
        acked("source", 12, s=0),
        read("a", 13, 3, [4], [40]),
        final("a", [0, 1, 2, 4], [10, 11, 20, 40]),
        final("b", [0, 1, 3], [21, 22, 41]),
        final("p", [0, 5], [60, 61]),
        final("q", [3], [62]),
        final("s", [2, 3], [72, 73], start=2),
        final("copy", [0, 2, 3], [70, 71, 72]),
        {"event": "copied", "from": "s", "to": "copy", "offset": 3},
    ]


def at_the_end(events: Events, journal: str) -> dict[str, Any]:
    return next(e for e in events if e["event"] == "final" and e["journal"] == journal)


def of(events: Events, kind: str, request: str) -> dict[str, Any]:
    return next(e for e in events if e["event"] == kind and e.get("request") == request)


def drop(journal: str, number: int) -> Callable[[Events], None]:
    def plant(events: Events) -> None:
        for column in ("offsets", "values"):
            del at_the_end(events, journal)[column][number]

    return plant


def change(kind: str, which: str, **to: object) -> Callable[[Events], None]:
    """Change the end of a journal, or an event of a request."""

    def plant(events: Events) -> None:
        found = at_the_end(events, which) if kind == "final" else of(events, kind, which)
        found.update(to)

    return plant


def change_read(number: int, **to: object) -> Callable[[Events], None]:
    def plant(events: Events) -> None:
        [event for event in events if event["event"] == "read"][number].update(to)

    return plant


def acknowledge_the_lost(events: Events) -> None:
    of(events, "unknown", "lost").update(acked("lost", 6.5))


def acknowledge_after_its_successor(events: Events) -> None:
    """A request is put behind one that began when it had long been acknowledged."""
    at_the_end(events, "a")["values"] = [20, 10, 11, 40]
    at_the_end(events, "a")["offsets"] = [0, 1, 2, 4]
    of(events, "acked", "one")["first"] = {}
    of(events, "acked", "two")["first"] = {}
    events[:] = [event for event in events if event["event"] != "read"]


def move_the_group(events: Events) -> None:
    events[-1]["offset"] = 4


MISTAKES: dict[str, tuple[Callable[[Events], None], str]] = {
    "an acknowledged row is lost": (drop("a", 1), "half of one is in a"),
    "an acknowledged request is lost": (drop("p", 0), "half of steps is in p"),
    "a row that was not truncated is lost": (drop("s", 0), "source was told offset 0 in s"),
    "a lost request was acknowledged": (acknowledge_the_lost, "lost was acknowledged"),
    "half a transaction is there": (drop("b", 2), "there is in"),
    "half a transaction that becomes visible in steps is there": (drop("q", 0), "steps is in"),
    "a row is twice in a journal": (
        change("final", "b", offsets=[0, 1, 3, 4], values=[21, 22, 41, 41]),
        "rows are twice in b",
    ),
    "a refused row is there": (
        change("final", "b", offsets=[0, 1, 3, 9], values=[21, 22, 41, 50]),
        "no was refused",
    ),
    "a row is there that nobody wrote": (
        change("final", "q", offsets=[3, 9], values=[62, 99]),
        "row 99 is in q",
    ),
    "a row is in another journal": (
        change("final", "q", offsets=[3, 9], values=[62, 30]),
        "row 30 is in q",
    ),
    "rows of a request are in another order": (
        change("final", "b", values=[22, 21, 41]),
        "another order in b",
    ),
    "offsets do not rise": (change("final", "b", offsets=[1, 0, 3]), "offsets of b do not rise"),
    "a request has another offset than was told": (
        change("acked", "one", first={"a": 1}),
        "was told offset 1",
    ),
    "a later request comes first": (acknowledge_after_its_successor, "comes after it in a"),
    "a reader saw a row that is not there": (
        change_read(1, offsets=[2, 3], values=[20, 30], next=4),
        "seen and not there: \\[\\(3, 30",
    ),
    "a reader missed a row": (change_read(0, offsets=[0], values=[10]), "not seen"),
    "a reader saw a row at another offset": (change_read(0, offsets=[0, 2]), "not seen"),
    "a later reader does not see what was acknowledged": (
        change_read(2, offsets=[], values=[], next=0),
        "b to its end at 0, without two",
    ),
    "a later reader sees less than an earlier one": (
        change_read(3, **{"from": 0, "offsets": [], "values": [], "next": 0}),
        "a to its end at 0, without",
    ),
    "a later reader does not see the other half": (
        lambda events: events.insert(-7, read("b", 14, 0, [0, 1], [21, 22])),
        "without there",
    ),
    "a row was copied twice": (
        change("final", "copy", offsets=[0, 1, 2, 3], values=[70, 71, 72, 72]),
        "rows are twice in copy",
    ),
    "a row was not copied": (drop("copy", 2), "copy has 2 rows"),
    "a truncated row was not copied": (drop("copy", 0), "source was acknowledged"),
    "a group is ahead of its copy": (move_the_group, "copy has 3 rows"),
}


def test_a_history_without_a_mistake_is_right() -> None:
    assert problems(history()) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    plant, expected = MISTAKES[mistake]
    events = history()

    plant(events)

    found = problems(events)
    assert any(re.search(expected, problem) for problem in found), found
