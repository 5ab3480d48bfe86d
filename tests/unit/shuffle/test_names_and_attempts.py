"""The pure parts: where things lie, which attempts count, what is registered."""

from __future__ import annotations

import pytest
from tests.unit.shuffle.shuffle_kit import column, write

from millrace.errors import MapOutputMissing, UserError
from millrace.ids import LATEST, Attempt, AttemptId, FolderId, MapTaskId
from millrace.shuffle import attempts
from millrace.shuffle.attempts import AttemptState, Finished, Newer, Unfinished
from millrace.shuffle.known_outputs import KnownOutputs
from millrace.storage import layout
from millrace.storage.local import LocalStore


def finished(number: int, created_at_ms: int = 0) -> Finished:
    return Finished(id=AttemptId.of(1, 0, 0, number), created_at_ms=created_at_ms)


def unfinished(number: int, *, changed_at_ms: int = 0, alive: bool = False) -> Unfinished:
    return Unfinished(
        id=AttemptId.of(1, 0, 0, number), changed_at_ms=changed_at_ms, run_is_alive=alive
    )


def test_an_attempt_lies_where_the_layout_says() -> None:
    assert layout.attempt_folder(AttemptId.of(100, 2, 7, 1)) == "shuffle/100/2/7/1"
    assert layout.attempt_folder(AttemptId.of(2**64 - 1, 0, 0, 1)).startswith(
        f"shuffle/{2**64 - 1}"
    )


@pytest.mark.parametrize("wrong", [-1, 2**64, True, "1", 1.0, None])
def test_what_is_not_an_id_makes_no_path(wrong: object) -> None:
    with pytest.raises(UserError, match="not an id"):
        layout.attempt_folder(AttemptId.of(1, 0, 0, wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["01", "-1", "+1", "1 ", "", "x", "1.0", "٣", str(2**64), "9" * 25]
)
def test_a_folder_with_another_name_is_no_number(name: str) -> None:
    assert layout.number(name) is None


def test_a_reference_leads_back_to_its_attempt() -> None:
    attempt = AttemptId.of(7, 0, 12, 3)

    assert layout.parse_reference(layout.reference_name(attempt)) == attempt
    assert [layout.parse_reference(n) for n in ("7-0-12", "7-0-12-3-1", "a-b-c-d", "")] == [
        None
    ] * 4


def test_only_hexadecimal_digits_make_a_fingerprint_folder() -> None:
    with pytest.raises(UserError, match="not a fingerprint: '../../../../etc'"):
        layout.family_folder("../../../../etc")


def test_latest_counts_finished_attempts_only() -> None:
    found: list[AttemptState] = [
        finished(1),
        finished(2),
        unfinished(3),
        Newer(id=AttemptId.of(1, 0, 0, 4)),
    ]

    assert attempts.latest(found) == 2
    assert attempts.latest(found[2:]) is None


def test_neither_the_latest_nor_what_is_relied_on_expires() -> None:
    found = [finished(number) for number in (1, 2, 3)]
    relied = {AttemptId.of(1, 0, 0, 1)}

    chosen = attempts.expired(found, relied_on=relied, now_ms=10, ttl_ms=1)

    assert chosen == [AttemptId.of(1, 0, 0, 2)]


def test_leftovers_wait_for_the_grace_and_for_their_run_to_end() -> None:
    found: list[AttemptState] = [
        unfinished(1, changed_at_ms=0),
        unfinished(2, changed_at_ms=60),
        unfinished(3, changed_at_ms=0, alive=True),
        finished(4),
        Newer(id=AttemptId.of(1, 0, 0, 5)),
    ]

    chosen = attempts.abandoned(found, now_ms=100, grace_ms=50)

    assert chosen == [AttemptId.of(1, 0, 0, 1)]


def test_the_registry_answers_for_the_exact_attempt_alone(store: LocalStore) -> None:
    registry = KnownOutputs()
    task = AttemptId.of(100, 2, 7, 1).task
    for number in (1, 3):
        registry.register(write(store, AttemptId(task, Attempt(number)), column([number])))

    assert registry.find(task, Attempt(1)).index.id.attempt == 1
    assert registry.find(task, LATEST).index.id.attempt == 3
    with pytest.raises(MapOutputMissing) as caught:
        registry.find(task, Attempt(2))
    assert str(caught.value) == (
        "map output not registered for requested attempt\n"
        "  asked for: query 100, stage 2, map task 7, attempt 2\n"
        "  registered attempts: 1, 3\n"
        "  to fix: ask for attempt 3"
    )


def test_the_registry_says_when_nothing_is_registered() -> None:
    task: MapTaskId = AttemptId.of(1, 0, 0, 1).task

    with pytest.raises(MapOutputMissing, match="attempt latest\n  registered attempts: none"):
        KnownOutputs().find(task, LATEST)


def test_registering_again_changes_nothing_and_forgetting_removes(store: LocalStore) -> None:
    registry = KnownOutputs()
    index = write(store, AttemptId.of(1, 0, 0, 1), column([1]))

    registry.register(index, FolderId("f"))
    registry.register(index, FolderId("f"))
    assert registry.attempts(index.id.task) == [1]
    assert registry.find(index.id.task, Attempt(1)).folder == "f"
    registry.forget(index.id)
    registry.forget(index.id)

    assert registry.attempts(index.id.task) == []
