"""Brokers killed with SIGKILL at every named point, and at any moment under load."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.journal.journal_kit import SCHEMA, column, read_all
from tests.unit.journal.kills_kit import (
    KILLED,
    child_dies_dirty,
    child_does,
    child_opens,
    child_works,
    in_child,
    make_template,
    start,
)

from millrace.errors import JournalUnknown
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.testing.fault_injection import POINTS

LEDGER = (
    "journal.ledger.before_commit",
    "journal.ledger.after_commit",
    "journal.ledger.after_mark",
)
WRITING = ("journal.append.after_write", "journal.append.after_sync")
MARKING = ("journal.append.before_mark", "journal.append.after_mark")
NEW_FILE = (*MARKING, *WRITING, "journal.append.after_folder_sync")
TRUNCATING = ("journal.truncate.before_unlink", "journal.truncate.after_unlink")
CASES = {
    "append": (*WRITING, *LEDGER),
    "append_small": LEDGER,
    "append_new": NEW_FILE,
    "transaction": (*WRITING, *LEDGER),
    "commit": LEDGER,
    "create": LEDGER,
    "delete": (*LEDGER, *TRUNCATING),
    "truncate": (*LEDGER, *TRUNCATING),
    "lease": LEDGER,
    "fence": LEDGER,
    "adopt": ("journal.adopt.after_sync", "journal.adopt.before_save", *LEDGER),
    "tidy": (*WRITING, *LEDGER, "journal.tidy.before_clear"),
    "merge": ("journal.merge.after_read", *WRITING, *LEDGER, "journal.merge.after_save"),
}
ALIKE = {"append_small", "create", "delete", "lease", "fence"}
"""Operations that take the same steps as others; they are tried among the slow tests."""
OPENING = ("journal.open.before_cut", "journal.open.after_cut")
DONE = {*LEDGER[1:], *TRUNCATING}
"""Points behind the ledger's commit: the request counts, though nobody was told."""


@dataclass(frozen=True, slots=True)
class State:
    """What a reader finds."""

    rows: dict[str, list[int]]
    group: int | None
    lease_epoch: int
    fenced_epoch: int


BEFORE = State({"a": list(range(10)), "b": list(range(10))}, 5, 0, 1)
MORE = {**BEFORE.rows, "a": [*range(10), 10, 11]}
AFTER = {
    "append": State(MORE, 5, 0, 1),
    "append_small": State(MORE, 5, 0, 1),
    "append_new": State({**BEFORE.rows, "new": []}, 5, 0, 1),
    "transaction": State({"a": [*range(11)], "b": [*range(11)]}, 7, 0, 1),
    "commit": State(BEFORE.rows, 7, 0, 1),
    "create": State({**BEFORE.rows, "new": []}, 5, 0, 1),
    "delete": State({"a": list(range(10))}, 5, 0, 1),
    "truncate": State({**BEFORE.rows, "b": []}, 5, 0, 1),
    "lease": State(BEFORE.rows, 5, 1, 1),
    "fence": State(BEFORE.rows, 5, 0, 2),
    "adopt": State(MORE, 5, 0, 1),
    "tidy": State({"a": list(range(11)), "b": []}, 5, 0, 1),
    "merge": State({**BEFORE.rows, "a": list(range(15))}, 5, 0, 1),
}
BEFOREHAND = {name: AFTER[name] for name in ("append_new", "tidy", "merge")}
"""What was acknowledged before the fault was armed, where that is more than `BEFORE`."""


def state_of(broker: EmbeddedBroker) -> State:
    leases = broker._book.leases
    there, fenced = leases.get("other"), leases.get("l")
    assert fenced is not None
    return State(
        {each.name: read_all(broker, each.name) for each in broker.list()},
        broker.committed("g", "a"),
        there.epoch if there else 0,
        fenced.epoch,
    )


def test_every_point_of_journals_is_covered() -> None:
    inside = {point for point in POINTS if point.startswith("journal.")}

    assert inside == {*OPENING, *(point for points in CASES.values() for point in points)}
    assert len(inside) >= 13


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "mill"
    make_template(str(folder))
    return folder


@pytest.fixture
def mill(tmp_path: Path, template: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "mill"))


@pytest.mark.parametrize(
    ("operation", "point"),
    [
        pytest.param(name, point, marks=[pytest.mark.slow] if name in ALIKE else [])
        for name, points in CASES.items()
        for point in points
    ],
)
def test_a_killed_broker_has_all_or_nothing_of_a_request(
    mill: Path, operation: str, point: str
) -> None:
    assert in_child(child_does, str(mill), operation, point) == KILLED

    broker = EmbeddedBroker.open(str(mill))
    before = BEFOREHAND.get(operation, BEFORE)
    assert state_of(broker) == (AFTER[operation] if point in DONE else before)
    broker.tidy()
    assert state_of(broker) == (AFTER[operation] if point in DONE else before)
    end = broker.append("a", column([77])).first_offset
    assert read_all(broker, "a", end) == [77]
    broker.close()
    assert unnamed_files(mill) - {"adopted/file"} == set()


def unnamed_files(folder: Path) -> set[str]:
    """Files of rows that the ledger does not name."""
    db = sqlite3.connect(folder / "ledger.sqlite")
    named = {row[0] for row in db.execute("SELECT file FROM segments")}
    db.close()
    files = [*folder.glob("segments/*/*"), *folder.glob("adopted/*")]
    return {path.relative_to(folder).as_posix() for path in files} - named


@pytest.mark.parametrize("point", OPENING)
def test_a_killed_opening_is_finished_by_the_next(mill: Path, point: str) -> None:
    assert in_child(child_dies_dirty, str(mill)) == KILLED
    longest = max(path.stat().st_size for path in mill.glob("segments/*/*"))
    assert in_child(child_opens, str(mill), point) == KILLED

    broker = EmbeddedBroker.open(str(mill))
    assert state_of(broker) == BEFORE
    assert max(path.stat().st_size for path in mill.glob("segments/*/*")) < longest
    broker.close()


def test_a_dead_owner_is_followed_at_once_and_its_ids_are_not_reused(mill: Path) -> None:
    in_child(child_does, str(mill), "create", LEDGER[1])
    broker = EmbeddedBroker.open(str(mill))
    ids = [each.id for each in broker.list()]
    broker.delete("new")

    assert broker.create("newer", SCHEMA).id > max(ids)
    with pytest.raises(JournalUnknown):
        broker.get("new")
    broker.close()


# At any moment.


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def kill_after(folder: Path, told: Path, count: int, writers: int, first: int) -> None:
    before = len(lines(told))
    child = start(child_works, str(folder), str(told), writers, first)
    until = time.monotonic() + 60
    while len(lines(told)) < before + count:
        assert child.is_alive(), "the child ended by itself"
        assert time.monotonic() < until, "the child does not get on"
        time.sleep(0.005)
    os.kill(child.pid, 9)
    child.join(60)
    assert child.exitcode == KILLED


def check(folder: Path, told: Path, writers: int) -> None:
    """Judge by what writers were told, knowing nothing of how it was stored."""
    history = lines(told)
    broker = EmbeddedBroker.open(str(folder))
    for number in range(writers):
        mine = [each for each in history if each["writer"] == number]
        done = {each["done"]: each for each in mine if "done" in each}
        begun = {each["begun"]: each["rows"] for each in mine if "begun" in each}
        group = max((each["group"] for each in mine if "group" in each), default=None)
        stored = [broker.read(f"{name}/{number}", 0).stored() for name in ("x", "y")]
        for place, table in enumerate(stored):
            found: dict[int, int] = {}
            for value in table["x"].to_pylist():
                found[value] = found.get(value, 0) + 1
            assert set(done) <= set(found) <= set(begun)
            assert found == {value: begun[value] for value in found}
            offsets = dict(
                zip(*(table[c].to_pylist()[::-1] for c in ("x", "_mr_offset")), strict=True)
            )
            assert {v: offsets[v] for v in done} == {
                v: d["offsets"][place] for v, d in done.items()
            }
        assert set(stored[0]["x"].to_pylist()) == set(stored[1]["x"].to_pylist())
        committed = broker.committed(f"g{number}", f"x/{number}")
        assert group is None or (committed is not None and committed >= group)
    broker.close()


def killed_rounds(folder: Path, rounds: int, writers: int = 3) -> None:
    told = folder / "told"
    for number in range(rounds):
        kill_after(folder / "mill", told, 25 + 13 * number % 40, writers, 1000 * (number + 1))
        check(folder / "mill", told, writers)


def test_nothing_acknowledged_is_lost_when_killed_under_load(tmp_path: Path) -> None:
    killed_rounds(tmp_path, 3)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_in_many_kills(tmp_path: Path) -> None:
    killed_rounds(tmp_path, 50)
