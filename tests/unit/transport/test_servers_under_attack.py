"""The same attacks on every server, with TLS and without: none gets in, none is served worse."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.unit.transport.attack_kit import (
    KINDS,
    Recorder,
    Target,
    attacked_process,
    begun_call,
    every_call,
    is_closed,
)
from tests.unit.transport.owner_kit import SCHEMA, TOKEN, WORKSPACE, column

from millrace.config import GIB, KIB, MIB, Config
from millrace.errors import UserError
from millrace.journal.core.values import SegmentFile
from millrace.transport.flight.first_call import PREFACE, SETTINGS
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.owner_endpoint import JournalAddress

SMALL = Config(
    owner_request_bytes_max=4 * MIB,
    agent_request_bytes_max=4 * MIB,
    reads_envelope_bytes_max=4 * MIB,
    server_proof_ms_max=400,
    server_silent_ms_max=400,
    server_unproven_per_address_max=8,
)
HUGE_BYTES = 64 * MIB
NOT_LET_IN = (fl.FlightUnauthenticatedError,)
CUT = (fl.FlightError, pa.ArrowException, OSError, StopIteration)


@pytest.fixture(scope="module", params=["plain", pytest.param("tls", marks=pytest.mark.slow)])
def process(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    certificate_files: tuple[Path, Path],
) -> Iterator[Callable[[str], Target]]:
    tls = certificate_files if request.param == "tls" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_TLS_CA", str(certificate_files[0]))
        with attacked_process(tmp_path_factory.mktemp("attacked"), SMALL, tls) as targets:
            yield targets


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, process: Callable[[str], Target]) -> Target:
    return process(request.param)


@pytest.mark.parametrize("token", [None, "", " ", "wrong", "a-token-for-test", "x" * 4000])
def test_a_call_without_the_right_token_is_refused(target: Target, token: str | None) -> None:
    headers = [] if token is None else target.headers(token)

    with target.attacked(), target.client() as client:
        for call in every_call(client, headers, b"x"):
            with pytest.raises(NOT_LET_IN):
                call()


def test_the_token_of_a_connection_does_not_count_for_its_other_calls(target: Target) -> None:
    with target.attacked(), target.client() as client:
        options = fl.FlightCallOptions(headers=target.headers(), timeout=30)
        with contextlib.suppress(fl.FlightServerError, NotImplementedError):  # Unknown; but let in.
            list(client.do_action(fl.Action("none", b""), options))

        for call in every_call(client, target.headers("wrong"), b"x"):
            with pytest.raises(NOT_LET_IN):
                call()


def test_nobody_falls_back_to_clear_text(target: Target) -> None:
    scheme = "grpc" if target.is_tls else "grpc+tls"
    address = f"{scheme}://127.0.0.1:{target.port}"

    with target.attacked(), target.client(address) as client:
        for call in every_call(client, target.headers(), b"x"):
            with pytest.raises(fl.FlightUnavailableError):
                call()


@pytest.mark.parametrize("seed", range(4))
def test_garbage_is_cut_off(target: Target, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    noise = rng.randbytes(200 * KIB)
    begin = begun_call(target.headers("wrong"))
    garbage = [
        noise,
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + noise,
        PREFACE + noise,
        PREFACE + SETTINGS + b"\xff\xff\xff\1\4\0\0\0\1" + noise,
        # Headers that never end.
        PREFACE + SETTINGS + b"\0\0\0\1\0\0\0\0\1" + b"\0\0\1\x09\0\0\0\0\1\x20" * 40_000,
        # Pings without end.
        PREFACE + SETTINGS + (b"\0\0\x08\6\0\0\0\0\0" + bytes(8)) * 20_000,
        *(_flipped(begin, rng) + noise for _ in range(8)),
    ]

    with target.attacked():
        for sent in garbage:
            with target.raw() as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(sent)
                assert is_closed(connection)


def test_garbage_behind_a_token_ends_that_connection_alone(target: Target) -> None:
    rng = random.Random(1)  # noqa: S311
    begin = begun_call(target.headers())

    with target.attacked():
        for _ in range(8):
            with target.raw() as connection:
                with contextlib.suppress(OSError):
                    connection.sendall(begin + rng.randbytes(200 * KIB))
                assert is_closed(connection)


def test_a_huge_call_without_a_token_is_refused_unread(target: Target) -> None:
    body = bytes(HUGE_BYTES)

    with target.attacked(), target.client() as client:
        for call in every_call(client, target.headers("wrong"), body):
            with pytest.raises(NOT_LET_IN):
                call()


def test_a_huge_call_with_a_token_is_cut_off_at_the_limit(target: Target) -> None:
    body = bytes(HUGE_BYTES)

    with target.attacked():
        for number in range(4):
            with target.client() as client, pytest.raises(CUT):
                every_call(client, target.headers(), body)[number]()


def test_a_message_that_unpacks_to_a_larger_one_is_cut_off(target: Target) -> None:
    begin = begun_call(target.headers())
    packed = b"\1" + (100).to_bytes(4, "big") + bytes(100)
    frame = len(packed).to_bytes(3, "big") + b"\0\1" + (1).to_bytes(4, "big")

    with target.attacked(), target.raw() as connection:
        connection.sendall(begin + frame + packed)
        assert is_closed(connection)


def test_slow_clients_are_cut_off(target: Target) -> None:
    whole = begun_call(target.headers("wrong"))
    message = b"\0" + (1000).to_bytes(4, "big") + b"x"
    frame = (1005).to_bytes(3, "big") + b"\0\1" + (1).to_bytes(4, "big")

    with target.attacked(), contextlib.ExitStack() as ending:
        silent = ending.enter_context(target.raw())
        plain = ending.enter_context(socket.create_connection(("127.0.0.1", target.port)))
        plain.settimeout(30)
        stopped = ending.enter_context(target.raw())
        stopped.sendall(begun_call(target.headers()) + frame + message)
        slow = ending.enter_context(target.raw())
        with contextlib.suppress(OSError):
            slow.settimeout(0.02)
            for at in range(len(whole) - 1):
                slow.sendall(whole[at : at + 1])
                with contextlib.suppress(TimeoutError):
                    if at > len(SETTINGS) and not slow.recv(100):
                        break
        slow.settimeout(30)

        assert all(map(is_closed, (silent, plain, stopped, slow)))


def test_many_connections_do_not_keep_a_proper_client_out(target: Target) -> None:
    with target.attacked(), contextlib.ExitStack() as ending:
        for _ in range(150):
            ending.enter_context(socket.create_connection(("127.0.0.1", target.port)))
        target.serve_properly()
        assert target.open_files() < 150


def test_a_token_shown_often_is_no_more_than_connections_at_once(target: Target) -> None:
    begin = begun_call(target.headers())

    with target.attacked(), contextlib.ExitStack() as ending:
        for _ in range(20):
            connection = ending.enter_context(target.raw())
            connection.sendall(begin)
        target.serve_properly()


def test_calls_that_are_sent_again_do_nothing_twice(target: Target) -> None:
    with contextlib.closing(Recorder(target.port)) as recorder:
        through = dataclasses.replace(
            target, address=target.address.replace(str(target.port), str(recorder.port))
        )
        through.serve_properly()
        if target.kind == "owner":
            _publish(through)

        with target.attacked():
            for _ in range(3):
                recorder.replay()


def test_no_call_names_a_file_outside(process: Callable[[str], Target], tmp_path: Path) -> None:
    target = process("owner")
    outside = tmp_path / "outside.ipc"
    with pa.OSFile(str(outside), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_batch(column(9))
    where = JournalAddress(address=target.address, token=TOKEN, workspace_id=WORKSPACE)
    with target.attacked(), contextlib.closing(join_journals(where, SMALL)) as broker:
        folder = broker.adoption_folder()
        link = Path(folder) / "link.ipc"
        link.symlink_to(outside)
        paths = [
            str(outside),
            f"{folder}/../../../{outside}",
            f"{folder}/../../token",
            str(link),
            f"{folder}/a\0b.ipc",
            "",
            "/dev/stdin",
            "relative.ipc",
        ]
        for path in paths:
            file = SegmentFile(path=path, schema=SCHEMA, bytes=outside.stat().st_size, ranges=())
            with pytest.raises(UserError, match="to fix"):
                broker.adopt({"a": [file]})
        link.unlink()


@pytest.mark.parametrize("folder", ["..", "../host", "/etc", "a/../b", "", "\\0", "a" * 4000])
def test_no_folder_outside_is_served(process: Callable[[str], Target], folder: str) -> None:
    target = dataclasses.replace(process("agent"), folder=folder)

    with process("agent").attacked(), target.client() as client:
        for call in every_call(client, target.headers(), b"x"):
            with pytest.raises(NOT_LET_IN):
                call()


@pytest.fixture(scope="module", params=["plain", "tls"])
def default_process(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    certificate_files: tuple[Path, Path],
) -> Iterator[Callable[[str], Target]]:
    tls = certificate_files if request.param == "tls" else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILLRACE_TLS_CA", str(certificate_files[0]))
        with attacked_process(tmp_path_factory.mktemp("default"), Config(), tls) as targets:
            yield targets


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_gibibyte_is_not_read(default_process: Callable[[str], Target], kind: str) -> None:
    target = default_process(kind)
    body = bytes(1 * GIB)
    number = 1 if kind in ("live", "stream") else 0

    with target.attacked():
        with target.client() as client, pytest.raises(NOT_LET_IN):
            every_call(client, target.headers("wrong"), body)[number]()
        with target.client() as client, pytest.raises(CUT):
            every_call(client, target.headers(), body)[number]()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_connections_keep_nobody_out(
    default_process: Callable[[str], Target], kind: str
) -> None:
    target = default_process(kind)

    with target.attacked(), contextlib.ExitStack() as ending:
        for number in range(1000):
            ending.enter_context(socket.create_connection(("127.0.0.1", target.port)))
            if number % 100 == 0:
                target.serve_properly()
        assert target.open_files() < 200


def _publish(target: Target) -> None:
    where = JournalAddress(address=target.address, token=TOKEN, workspace_id=WORKSPACE)
    with contextlib.closing(join_journals(where, SMALL)) as broker:
        with broker.producer("replayed") as producer:
            producer.append_now("a", column(4, 5))
            producer.append("a", column(6))
            producer.commit()
        known = broker.producer_id("numbered")
        broker.append("a", column(7), producer=known, sequence=1)


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(3):
        changed[rng.randrange(len(PREFACE), len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)
