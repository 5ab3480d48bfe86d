"""Headers, first calls and message sizes: read right in any pieces, and refused at the limit."""

from __future__ import annotations

import contextlib
import random
import socket
import threading

import pyarrow.flight as fl
import pytest
from tests.unit.transport.attack_kit import begun_call

from millrace.transport.flight.first_call import (
    PREFACE,
    SETTINGS,
    FirstCall,
    FirstCallReader,
    NotACall,
    refusal,
)
from millrace.transport.flight.hpack import NotHeaders, decode_headers
from millrace.transport.flight.message_sizes import MessageSizes, TooLarge

ACKNOWLEDGED = b"\0\0\0\4\1\0\0\0\0"
SHOWN = [(b"authorization", b"Bearer abc")]


# The examples of RFC 7541, appendix C: with and without its code, and entries that are added.
@pytest.mark.parametrize(
    ("block", "name", "value"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", "custom-key", "custom-header"),
        ("040c2f73616d706c652f70617468", ":path", "/sample/path"),
        ("100870617373776f726406736563726574", "password", "secret"),
        ("828684418cf1e3c2e5f23a6ba0ab90f4ff", ":authority", "www.example.com"),
        ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", "custom-key", "custom-value"),
    ],
)
def test_headers_are_read_as_the_standard_says(block: str, name: str, value: str) -> None:
    data = bytes.fromhex(block)
    if "bf" in block[:10]:  # That example goes on from an earlier block.
        data = data.replace(b"\xbf", b"", 1)

    assert decode_headers(data)[name] == [value]


def test_an_entry_that_was_added_is_found_by_its_number() -> None:
    added = bytes.fromhex("400a637573746f6d2d6b65790d637573746f6d2d686561646572")

    assert decode_headers(added + b"\xbe")["custom-key"] == ["custom-header"] * 2


def test_bytes_of_any_kind_are_headers_or_refused() -> None:
    rng = random.Random(5)  # noqa: S311
    for _ in range(3000):
        with contextlib.suppress(NotHeaders):
            decode_headers(rng.randbytes(rng.randrange(60)))


def test_a_first_call_is_the_same_in_any_pieces_and_the_answer_to_settings_is_taken_out() -> None:
    whole = begun_call(SHOWN)
    rng = random.Random(2)  # noqa: S311
    for most in (1, 2, 7, 1000):
        reader = FirstCallReader(len(whole))
        call = None
        at = 0
        while call is None:
            size = rng.randint(1, most)
            call = reader.on_bytes(whole[at : at + size])
            at += size

        assert call.headers["authorization"] == ["Bearer abc"]
        assert call.received == whole.replace(ACKNOWLEDGED, b"", 1)
        assert call.stream == 1


def test_a_client_may_answer_settings_after_its_headers() -> None:
    whole = begun_call(SHOWN).replace(ACKNOWLEDGED, b"", 1)
    reader = FirstCallReader(1000)

    assert reader.on_bytes(whole) is None
    call = reader.on_bytes(ACKNOWLEDGED)

    assert call == FirstCall(1, call.headers if call else {}, whole)


def test_more_bytes_than_the_limit_before_the_headers_end_are_refused() -> None:
    whole = begun_call(SHOWN)
    kept = len(whole) - len(ACKNOWLEDGED)

    assert FirstCallReader(kept).on_bytes(whole[:-1]) is None
    with pytest.raises(NotACall, match="more than"):
        FirstCallReader(kept - 1).on_bytes(whole[:-1])
    with pytest.raises(NotACall, match="more than"):
        FirstCallReader(len(whole)).on_bytes(PREFACE + SETTINGS + b"\xff\xff\xff\1\4\0\0\0\1")


@pytest.mark.parametrize("seed", range(50))
def test_a_flipped_call_is_a_call_or_refused(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    whole = begun_call(SHOWN)
    for _ in range(40):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(NotACall):
            FirstCallReader(1000).on_bytes(bytes(changed))


def test_a_real_client_hears_a_refusal_as_flight_s_own() -> None:
    """And its first bytes are understood, as this version of gRPC sends them."""
    listener = socket.create_server(("127.0.0.1", 0))
    shown: list[str] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(SETTINGS)
            reader = FirstCallReader(64 * 1024)
            call = None
            while call is None:
                call = reader.on_bytes(connection.recv(4096))
            shown.extend(call.headers["authorization"])
            connection.sendall(refusal(call.stream, "not you"))
            while connection.recv(4096):
                pass

    thread = threading.Thread(target=answer)
    thread.start()
    client = fl.FlightClient(f"grpc://127.0.0.1:{listener.getsockname()[1]}")
    options = fl.FlightCallOptions(headers=SHOWN, timeout=20)

    with pytest.raises(fl.FlightUnauthenticatedError, match="not you"):
        list(client.do_action(fl.Action("a", bytes(1_000_000)), options))
    client.close()
    thread.join()
    listener.close()

    assert shown == ["Bearer abc"]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    size = len(payload).to_bytes(3, "big")
    return size + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def message(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big") + bytes(size)


def test_messages_up_to_the_limit_pass_in_any_pieces_and_one_beyond_is_noticed_at_once() -> None:
    rng = random.Random(3)  # noqa: S311
    first, second = message(100) + message(0) + message(7), message(100)
    sent = frame(4, 0, 0, bytes(6)) + frame(1, 4, 1, b"x")
    while first or second:
        cut = rng.randint(1, 40)
        sent += frame(0, 0, 1, first[:cut]) + frame(0, 0, 3, second[:cut])
        first, second = first[cut:], second[cut:]
    sizes = MessageSizes(100)
    at = 0
    while at < len(sent):
        size = rng.randint(1, 30)
        sizes.on_bytes(memoryview(sent)[at : at + size])
        at += size
    assert not sizes.is_within_message

    with pytest.raises(TooLarge, match="101 bytes; the limit is 100"):
        sizes.on_bytes(memoryview(frame(0, 0, 1, message(101)[:5])))


def test_a_stream_that_ends_within_a_message_is_forgotten() -> None:
    for end in (frame(0, 1, 1, b""), frame(3, 0, 1, bytes(4)), frame(1, 5, 1, b"x")):
        sizes = MessageSizes(100)
        sizes.on_bytes(memoryview(frame(0, 0, 1, message(50)[:20])))
        assert sizes.is_within_message

        sizes.on_bytes(memoryview(end))

        assert not sizes.is_within_message


def test_what_hides_a_message_s_size_is_refused() -> None:
    with pytest.raises(TooLarge, match="compressed"):
        MessageSizes(100).on_bytes(memoryview(frame(0, 0, 1, b"\1\0\0\0\1x")))
    with pytest.raises(TooLarge, match="padding"):
        MessageSizes(100).on_bytes(memoryview(frame(0, 8, 1, b"\0" + message(1))))
