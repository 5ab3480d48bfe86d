"""Producers killed with SIGKILL at every named point: whole in all journals, or in none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.journal.journal_kit import column
from tests.unit.journal.kills_kit import KILLED, in_child
from tests.unit.journal.producers_kit import (
    NAME,
    NAMES,
    child_does,
    child_leaves,
    judge,
    make_shop,
)

from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.testing.fault_injection import POINTS

Case = tuple[str, str, int | None, bool]
"""What was done, where it ended, in which journal, and whether its rows are to be there."""
ACKS = [
    (operation, f"producer.{kind}.{when}_ack", place, kind == "commit")
    for operation, kind in (
        ("commit", "commit"),
        ("rolled back", "rollback"),
        ("prepared and rolled back", "rollback"),
    )
    for when in ("before", "after")
    for place in (0, 1, 2)
]
CASES: list[Case] = [
    ("open", "producer.open.after_lease", None, False),
    ("commit", "producer.append.before", None, False),
    ("commit", "producer.append.after", None, False),
    ("commit", "producer.prepare.before_store", None, False),
    ("commit", "producer.prepare.after_store", None, True),
    ("prepared and rolled back", "producer.rollback.before_store", None, True),
    ("prepared and rolled back", "producer.rollback.after_store", None, False),
    *ACKS,
]
RECOVERING = ("producer.recover.before_ack", "producer.recover.after_ack")
ALIKE = (0, 2)
"""Journals at which it is much as at another one; these are tried among the slow tests."""


def name_of(case: Case) -> str:
    operation, point, place, _ = case
    return f"{operation}, {point}" if place is None else f"{operation}, {point}@{place}"


def test_every_point_of_producers_is_covered() -> None:
    points = {point for point in POINTS if point.startswith("producer.")}

    assert points == {point for _, point, _, _ in CASES} | set(RECOVERING)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "mill"
    make_shop(str(folder))
    return folder


@pytest.fixture
def mill(tmp_path: Path, template: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "mill"))


def check(mill: Path, *, is_there: bool) -> None:
    """Open the producer again, judge what it made of it, and go on."""
    broker = EmbeddedBroker.open(str(mill))
    producer = broker.producer(NAME)
    expected = [1, 2, 2] if is_there else [1]

    found = judge(broker)
    assert found.committed == dict.fromkeys(NAMES, expected)
    assert found.open == {name: [] for name in NAMES}
    assert [sorted(acks) for acks in found.acks.values()] == [list(NAMES)] * (1 + is_there)
    for name in NAMES:
        producer.append(name, column([3]))
    producer.commit()
    assert judge(broker).committed == {name: [*expected, 3] for name in NAMES}
    broker.close()


@pytest.mark.parametrize(
    ("operation", "point", "place", "is_there"),
    [
        pytest.param(*case, id=name_of(case), marks=[pytest.mark.slow] if case[2] in ALIKE else [])
        for case in CASES
    ],
)
def test_a_killed_producer_is_whole_in_all_journals_or_in_none(
    mill: Path, operation: str, point: str, place: int | None, *, is_there: bool
) -> None:
    assert in_child(child_does, str(mill), operation, point, place) == KILLED

    check(mill, is_there=is_there)


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize(
    "point", [pytest.param(RECOVERING[0], marks=[pytest.mark.slow]), RECOVERING[1]]
)
def test_a_recovery_that_is_killed_is_made_good_by_the_next(
    mill: Path, point: str, *, prepared: bool
) -> None:
    assert in_child(_leave, str(mill), prepared) == 0
    for _ in range(2):
        assert in_child(child_does, str(mill), "open", point, None) == KILLED

    check(mill, is_there=prepared)


def _leave(folder: str, prepared: bool) -> None:  # noqa: FBT001 - goes to another process by place
    child_leaves(folder, prepared=prepared)
