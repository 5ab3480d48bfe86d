from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Corrupt, DataLost, MapOutputMissing, MillraceError, UserError
from millrace.ids import (
    ID_MAX,
    LATEST,
    Attempt,
    FolderId,
    Latest,
    MapTask,
    MapTaskId,
    QueryId,
    ReducePartition,
    StageId,
)
from millrace.transport.agent import agent_messages
from millrace.transport.agent.agent_messages import (
    AgentPong,
    ByteRange,
    Search,
    Ticket,
    WhichAttempt,
)
from millrace.transport.flight import wire

GOOD = {
    "query_id": 100,
    "stage_id": 2,
    "map_task": 7,
    "attempt": 1,
    "partition": 3,
    "start": 0,
}
numbers = st.integers(0, ID_MAX)


def ticket_of(*ranges: object, **changes: object) -> bytes:
    return json.dumps({"ranges": ranges, "chunk_bytes": 7, **changes}).encode()


def decode(data: bytes) -> Ticket:
    return agent_messages.decode_ticket(data, chunk_bytes_max=7, ranges_max=2)


@given(numbers, numbers, numbers, st.one_of(st.just(LATEST), st.integers(1, ID_MAX)), numbers)
def test_a_ticket_reads_as_it_was_written(
    query: int, stage: int, task: int, attempt: int | Latest, start: int
) -> None:
    which = WhichAttempt(
        MapTaskId(QueryId(query), StageId(stage), MapTask(task)),
        attempt if isinstance(attempt, Latest) else Attempt(attempt),
    )
    ticket = Ticket((ByteRange(which, ReducePartition(3), start),) * 2, chunk_bytes=7)

    assert decode(agent_messages.encode_ticket(ticket)) == ticket
    assert agent_messages.decode_which(agent_messages.encode_which(which)) == which


def test_on_the_wire_attempt_0_means_latest() -> None:
    (asked,) = decode(ticket_of({**GOOD, "attempt": 0})).ranges

    assert asked.which.attempt == LATEST


@pytest.mark.parametrize(
    "change",
    [
        {"query_id": "../../etc"},
        {"map_task": "7"},
        {"map_task": -1},
        {"stage_id": 2**64},
        {"attempt": 10**400},
        {"partition": 3.0},
        {"partition": True},
        {"start": None},
        {"start": [0]},
        {"path": "/etc/passwd"},
    ],
)
def test_a_ticket_that_is_not_all_numbers_in_their_range_is_refused(
    change: dict[str, object],
) -> None:
    with pytest.raises(UserError, match="not a ticket"):
        decode(ticket_of({**GOOD, **change}))


@pytest.mark.parametrize(
    "data",
    [
        ticket_of(),
        ticket_of(GOOD, GOOD, GOOD),
        ticket_of("../.."),
        ticket_of(GOOD, chunk_bytes=0),
        ticket_of(GOOD, chunk_bytes=8),
        ticket_of(GOOD, chunk_bytes="7"),
        ticket_of(ranges=GOOD),
        ticket_of(GOOD, path="/etc/passwd"),
    ],
)
def test_a_ticket_beyond_the_limits_is_refused(data: bytes) -> None:
    with pytest.raises(UserError, match="not a ticket"):
        decode(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_in_words(data: bytes) -> None:
    for read in (
        decode,
        agent_messages.decode_which,
        agent_messages.decode_search,
        agent_messages.decode_pong,
    ):
        with pytest.raises(UserError):
            read(data)


def test_json_nested_too_deep_is_refused() -> None:
    with pytest.raises(UserError, match="not a ticket"):
        decode(b"[" * 1_000_000)


@pytest.mark.parametrize(
    "made_from", [[7], [{"inputs": 7}], [{"inputs": [7]}], [{"inputs": [{}]}], {}]
)
def test_a_search_without_usable_inputs_is_refused(made_from: object) -> None:
    with pytest.raises(UserError, match="not a question for finished work"):
        agent_messages.decode_search(json.dumps({"made_from": made_from, "verify": False}).encode())


def test_a_search_reads_as_it_was_written() -> None:
    search = Search(made_from=({"inputs": [{"path": "a"}], "scan": {}},), verify=True)

    assert agent_messages.decode_search(agent_messages.encode_search(search)) == search


def test_a_pong_of_another_protocol_names_the_version_to_install() -> None:
    pong = agent_messages.encode_pong(
        AgentPong(
            protocol=agent_messages.PROTOCOL, folder=FolderId("ab" * 8), version="9.9", instance="i"
        )
    )
    other = json.dumps({**json.loads(pong), "protocol": 2}).encode()

    with pytest.raises(UserError, match=r"agent of Millrace 9\.9"):
        agent_messages.decode_pong(other)


@pytest.mark.parametrize("kind", [UserError, DataLost, MapOutputMissing, Corrupt])
def test_an_error_arrives_as_the_same_kind_with_its_words(kind: type[MillraceError]) -> None:
    arrived = wire.decode_error(wire.encode_error(kind("what\n  to fix: that")))

    assert type(arrived) is kind
    assert str(arrived) == "what\n  to fix: that"


@given(st.text(max_size=3000))
def test_an_error_of_any_length_is_short_on_the_wire(text: str) -> None:
    sent = wire.encode_error(UserError("\u00e4" * 900 + text))

    assert len(json.loads(sent)["text"].encode()) <= 1000
    assert isinstance(wire.decode_error(sent), UserError)


@pytest.mark.parametrize("data", [None, b"", b"{", b"[]", b'{"code":"os"}', b"\xff"])
def test_bytes_that_are_no_error_of_an_agent_are_told_apart(data: bytes | None) -> None:
    assert wire.decode_error(data) is None


@pytest.mark.parametrize("code", ["Sequence", "annotations", "__name__", "nothing", 7])
def test_an_unknown_code_is_a_plain_error(code: object) -> None:
    arrived = wire.decode_error(json.dumps({"code": code, "text": "t"}).encode())

    assert type(arrived) is MillraceError


@pytest.mark.parametrize("text", ["", "..", "../" + "a" * 16, "A" * 16, "a" * 15, "a" * 65])
def test_a_folder_id_is_hexadecimal_digits_and_nothing_else(text: str) -> None:
    with pytest.raises(UserError, match="not a folder id"):
        agent_messages.checked_folder(text)
