"""What an owner of journals answers, whom it refuses, and how its errors arrive."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.proxy import CuttingProxy
from tests.unit.transport.owner_kit import (
    QUICK,
    SCHEMA,
    TOKEN,
    WORKSPACE,
    all_values,
    client_of,
    column,
    place_at,
)

from millrace.errors import (
    Conflict,
    JournalUnknown,
    LeaseHeld,
    MillraceError,
    OwnerUnreachable,
    SchemaMismatch,
    UserError,
)
from millrace.journal.core.values import FileRange, SegmentFile
from millrace.journal.memory import MemoryBroker
from millrace.journal.row_files import write_file
from millrace.transport.flight.arrow_envelope import decode_answer, encode
from millrace.transport.flight.flight_calls import CallRefused
from millrace.transport.owner.broker_calls import CALLS
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.owner_endpoint import JournalAddress
from millrace.transport.owner.owner_links import OwnerConnections


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner.open(place_at(tmp_path / "mill"))
    yield made
    made.close()


@pytest.fixture
def client(owner: Owner) -> Iterator[JoinedBroker]:
    made = client_of(owner)
    yield made
    made.close()


def raw_call(owner: Owner, headers: list[tuple[bytes, bytes]], action: str = "ping") -> bytes:
    with fl.FlightClient(owner.endpoint.address) as connection:
        options = fl.FlightCallOptions(timeout=20, headers=headers)
        (answer,) = connection.do_action(fl.Action(action, b""), options)
        return bytes(answer.body.to_pybytes())


# Who is let in.


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"a-token-for-tests")],
        [(b"authorization", b"Bearer a-token-for-tests"), (b"x-millrace-workspace", b"other")],
        [(b"authorization", b"Bearer a-token-for-tests")] * 2,
    ],
)
def test_without_the_workspaces_token_nothing_is_answered(
    owner: Owner, headers: list[tuple[bytes, bytes]]
) -> None:
    for action in ("ping", "list", "no such call"):
        with pytest.raises(fl.FlightUnauthenticatedError, match="not its token"):
            raw_call(owner, headers, action)


def test_files_cannot_be_sent_without_the_token_either(owner: Owner, tmp_path: Path) -> None:
    where = JournalAddress(address=owner.endpoint.address, token="wrong", workspace_id=WORKSPACE)  # noqa: S106
    flight = OwnerConnections(where, QUICK)
    with pytest.raises(CallRefused, match="does not accept this token"):
        flight.send(owner.endpoint.address, b"", iter(()), timeout_ms=20_000)
    assert list((tmp_path / "mill/journals/adopted").iterdir()) == []


def test_a_ping_says_who_answers(owner: Owner) -> None:
    found = json.loads(raw_call(owner, [(b"authorization", b"Bearer a-token-for-tests")]))

    assert found["workspace"] == WORKSPACE
    assert (found["epoch"], found["instance"]) == (owner.epoch, owner.endpoint.instance)


def test_a_client_with_another_token_is_told_so(owner: Owner) -> None:
    with pytest.raises(UserError, match="refuses this workspace's token"):
        client_of(owner, token="another").list()  # noqa: S106


# How errors arrive.


def test_errors_arrive_as_the_same_kind_with_the_same_words(
    owner: Owner, client: JoinedBroker
) -> None:
    client.create("a", SCHEMA)
    client.acquire("l", "me")

    def words(broker: object, kind: type[MillraceError], call: str, *args: object) -> str:
        with pytest.raises(kind) as caught:
            getattr(broker, call)(*args)
        assert type(caught.value) is kind
        return str(caught.value)

    for kind, call, args in (
        (JournalUnknown, "get", ("none",)),
        (SchemaMismatch, "append", ("a", pa.table({"y": [1]}))),
        (UserError, "create", ("a", pa.schema([("x", pa.string())]))),
        (UserError, "create", ("not a name", SCHEMA)),
    ):
        assert words(client, kind, call, *args) == words(owner.broker, kind, call, *args)
    assert "held by 'me' under epoch 1" in words(client, LeaseHeld, "acquire", "l", "you")
    with pytest.raises(Conflict, match="expected: 3, found: None"):
        client.commit("g", "a", 0, expected=3)


def test_a_long_error_is_cut_and_keeps_its_kind(client: JoinedBroker) -> None:
    names = pa.schema([(f"column-{number}-{'x' * 50}", pa.int64()) for number in range(100)])
    client.create("wide", names)

    with pytest.raises(SchemaMismatch) as caught:
        client.append("wide", column(1))
    assert len(str(caught.value).encode()) <= 1000
    assert str(caught.value).startswith("rows do not fit journal wide")


def test_an_owner_that_fails_says_so_and_goes_on(owner: Owner, client: JoinedBroker) -> None:
    client.create("a", SCHEMA)
    broken = owner.broker.get
    owner.broker.get = lambda name: name.nothing  # type: ignore[method-assign, attr-defined]

    with pytest.raises(MillraceError, match="owner of the journals failed: AttributeError"):
        client.get("a")
    owner.broker.get = broken  # type: ignore[method-assign]
    assert client.get("a").schema == SCHEMA


# What is no call.


def test_calls_that_are_none_are_refused(owner: Owner) -> None:
    where = JournalAddress(address=owner.endpoint.address, token=owner.workspace.token)
    flight = OwnerConnections(where, QUICK)

    def ask(action: str, body: bytes) -> str:
        (answer,) = flight.ask(owner.endpoint.address, action, body, timeout_ms=20_000)
        with pytest.raises(UserError) as refused:
            decode_answer(answer, str)
        return str(refused.value)

    assert "unknown call 'shutdown'" in ask("shutdown", b"")
    assert "unknown call '__class__'" in ask("__class__", b"")
    assert "not a message" in ask("get", b"")
    assert "not a message" in ask("get", b"x" * 100)
    assert "not a call of get" in ask("get", encode({}))
    assert "not a call of get" in ask("get", encode({"name": "a", "more": 1}))
    assert "Expected `str`, got `array` - at `$.name`" in ask("get", encode({"name": ["a"]}))
    assert "Expected `int` <= 1099511627776 - at `$.lease_ms`" in ask(
        "acquire", encode({"name": "l", "holder": "h", "lease_ms": 2**62})
    )
    flight.close()
    assert set(CALLS) & {"close", "transaction", "store_file"} == set()


def test_a_call_above_the_limit_is_refused_on_both_sides(tmp_path: Path) -> None:
    small = QUICK.with_options(owner_request_bytes_max=2000)
    owner = Owner.open(place_at(tmp_path / "mill", small))
    rows = column(*range(1000))
    try:
        for limits in (small, QUICK):
            client = client_of(owner, limits)
            client.create("a", SCHEMA)
            with pytest.raises(UserError, match="too large\n  limit: 2000"):
                client.append("a", rows)
            assert client.end_offset("a") == 0
            client.close()
    finally:
        owner.close()


# Files.


def test_no_file_outside_the_adoption_folder_can_be_named(tmp_path: Path) -> None:
    """A memory broker takes any file that is there, so the server has to look."""
    owner = Owner.open(place_at(tmp_path / "mill", open_broker=lambda: MemoryBroker(QUICK)))
    client = client_of(owner)
    client.create("a", SCHEMA)
    outside = write_file(str(tmp_path / "outside"), [column(1)], SCHEMA)
    link = Path(owner.broker.adoption_folder()) / "link"
    link.symlink_to(tmp_path / "outside")
    try:
        for path in (
            outside.path,
            str(link),
            f"{owner.broker.adoption_folder()}/../{Path(outside.path).name}",
        ):
            with pytest.raises(UserError, match="cannot be adopted from where it lies"):
                client.adopt({"a": [replace(outside, path=path)]})
            with (
                pytest.raises(UserError, match="cannot be adopted"),
                client.transaction() as t,
            ):
                t.adopt("a", [replace(outside, path=path)])
        assert Path(outside.path).exists()
        assert client.end_offset("a") == 0
    finally:
        client.close()
        owner.close()


def test_a_file_is_sent_where_no_folder_is_shared(owner: Owner, client: JoinedBroker) -> None:
    limits = QUICK.with_options(fetch_chunk_bytes=1000, journal_range_bytes_target=4000)
    sender = client_of(owner, limits)
    client.create("a", SCHEMA)
    file = sender.store_file(SCHEMA, (column(*range(n, n + 500)) for n in range(0, 5000, 500)))
    sender.close()

    assert Path(file.path).parent == Path(owner.broker.adoption_folder())
    assert Path(file.path).stat().st_size == file.bytes
    assert len(file.ranges) > 5
    assert client.end_offset("a") == 0
    client.adopt({"a": [file]})
    assert all_values(client, "a") == list(range(5000))


def test_a_file_that_arrives_otherwise_leaves_nothing_behind(
    owner: Owner, client: JoinedBroker, tmp_path: Path
) -> None:
    link = client._caller.link()
    path = str(tmp_path / "file")
    file = write_file(path, [column(*range(100))], SCHEMA)

    with pytest.raises(UserError, match="did not arrive as it was sent"):
        link.store(path, replace(file, bytes=file.bytes + 1), timeout_ms=20_000)
    with pytest.raises(UserError, match="did not arrive as it was sent"):
        link.store(path, replace(file, bytes=file.bytes - 1), timeout_ms=20_000)
    huge = replace(file, bytes=QUICK.owner_file_bytes_max + 1)
    with pytest.raises(UserError, match="owner_file_bytes_max"):
        link.store(path, huge, timeout_ms=20_000)
    assert list(Path(owner.broker.adoption_folder()).iterdir()) == []
    assert link.store(path, file, timeout_ms=20_000).bytes == file.bytes


def test_a_file_said_to_hold_what_it_does_not_is_found_out_when_read(
    client: JoinedBroker,
) -> None:
    client.create("a", SCHEMA)
    file = client.store_file(SCHEMA, [column(1, 2, 3)])
    lying = tuple(
        FileRange(position=r.position, bytes=r.bytes, rows=r.rows, checksum="0" * 16)
        for r in file.ranges
    )
    client.adopt(
        {"a": [SegmentFile(path=file.path, schema=SCHEMA, bytes=file.bytes, ranges=lying)]}
    )
    with pytest.raises(MillraceError, match="not the bytes that were written"):
        client.read("a", 0)


# Waiting.


def test_waits_at_the_owner_are_bounded_and_longer_ones_go_on(tmp_path: Path) -> None:
    limits = QUICK.with_options(owner_wait_ms_max=20, owner_waits_max=1)
    owner = Owner.open(place_at(tmp_path / "mill", limits))
    client = client_of(owner, limits)
    client.create("a", SCHEMA)
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.append(client.wait_for_rows({"a": 0}, timeout_s=60)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    before = client.watch(-1)
    assert client.watch(before.version, timeout_s=0.1).version == before.version
    assert not client.wait_for_rows({"a": 0}, timeout_s=0.05)
    client.append("a", column(1))
    for thread in threads:
        thread.join(60)

    assert found == [True] * 4
    client.close()
    owner.close()


def test_an_ending_owner_does_not_wait_for_those_who_wait(tmp_path: Path) -> None:
    limits = QUICK.with_options(owner_wait_ms_max=600_000, owner_stop_ms_max=600_000)
    owner = Owner.open(place_at(tmp_path / "mill", limits))
    client = client_of(owner, limits.with_options(owner_retries_max=1))
    client.create("a", SCHEMA)
    answers: list[object] = []

    def wait() -> None:
        try:
            answers.append(client.wait_for_rows({"a": 0}, timeout_s=600))
        except MillraceError as error:
            answers.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while owner.server._waits._value == limits.owner_waits_max:
        threading.Event().wait(0.005)
    owner.close()
    waiting.join(60)

    assert not waiting.is_alive()
    assert len(answers) == 1
    client.close()


# Connections that are cut.


def test_a_connection_cut_at_any_byte_doubles_and_loses_nothing(
    owner: Owner, proxy: Callable[[str, list[int | None]], CuttingProxy]
) -> None:
    """The first connections break off ever later in what the owner sends; then one holds."""
    owner.broker.create("a", SCHEMA)
    owner.broker.create("plain", SCHEMA)
    mine = owner.broker.producer_id("p")
    done, doubt = [], []
    cuts = [*range(1, 900, 60), None]
    for sequence, cut in enumerate(cuts, start=1):
        between = proxy(owner.endpoint.address, [cut, cut and cut + 30, None])
        where = JournalAddress(address=between.address, token=TOKEN, workspace_id=WORKSPACE)
        client = join_journals(where, QUICK)
        client.append("a", column(sequence), producer=mine, sequence=sequence)
        client.close()
        client = join_journals(
            JournalAddress(
                address=proxy(owner.endpoint.address, [cut, None]).address,
                token=TOKEN,
                workspace_id=WORKSPACE,
            ),
            QUICK,
        )
        try:
            client.append("plain", column(sequence))
            done.append(sequence)
        except OwnerUnreachable as error:
            assert "may have been carried out" in str(error)  # noqa: PT017
            doubt.append(sequence)
        client.close()

    assert all_values(owner.broker, "a") == list(range(1, len(cuts) + 1))
    plain = all_values(owner.broker, "plain")
    assert plain == sorted(set(plain))
    assert set(done) <= set(plain) <= {*done, *doubt}
    assert done
