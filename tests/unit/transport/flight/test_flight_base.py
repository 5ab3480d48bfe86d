"""The base of all Flight servers and clients: who is admitted, and which errors the client gets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from millrace.config import Config
from millrace.errors import Conflict, UserError
from millrace.metrics.process_metrics import FETCHED_BYTES
from millrace.transport.flight.byte_batches import BYTES, byte_batch, byte_batches, byte_values
from millrace.transport.flight.flight_calls import CallCut, CallRefused, FlightCalls
from millrace.transport.flight.guarded_server import Admission, GuardedServer, ListenAddress
from millrace.transport.flight.wire import MessageLimit

TOKEN = "the token of these tests"  # noqa: S105 - of a test
NAME, ROOM = "x-test-name", "x-test-room"
HERE = ListenAddress(host="127.0.0.1")


class Echo(GuardedServer):
    """Answers with what it was asked; its streams begin, and then say nothing."""

    def __init__(self, listen: ListenAddress = HERE) -> None:
        self.admission = Admission(
            TOKEN, "not for you", required={NAME: "echo"}, optional={ROOM: "1"}
        )
        limit = MessageLimit("a_limit", 1000)
        super().__init__("the echo", listen, self.admission, config=Config(), limit=limit)
        self.goes_on = threading.Event()
        self.actions = {"echo": lambda _context, body: [bytes(body)], "fail": self._fail}

    def _fail(self, _context: fl.ServerCallContext, _body: pa.Buffer) -> list[bytes]:
        raise Conflict("somebody else was first\n  to fix: read again")

    def do_get(self, _context: fl.ServerCallContext, _ticket: fl.Ticket) -> fl.GeneratorStream:
        def batches() -> Iterator[pa.RecordBatch]:
            yield byte_batch(pa.py_buffer(b"one"))
            self.goes_on.wait(20)

        return fl.GeneratorStream(BYTES, batches())


@pytest.fixture
def server() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.goes_on.set()
    made.shutdown()


def calls(token: str = TOKEN, **shown: str) -> FlightCalls:
    headers = {NAME: "echo", **{f"x-test-{name}": value for name, value in shown.items()}}
    return FlightCalls(token, headers, connections_max=1)


def ask(server: Echo, flight: FlightCalls, action: str = "echo", body: bytes = b"hello") -> bytes:
    (answer,) = flight.ask(server.address, action, body, timeout_ms=10_000)
    return bytes(answer)


def test_a_call_that_shows_everything_is_answered(server: Echo) -> None:
    assert ask(server, calls()) == b"hello"
    assert ask(server, calls(room="1")) == b"hello"


@pytest.mark.parametrize(
    ("token", "shown"),
    [("another token altogether", {}), (TOKEN, {"name": "other"}), (TOKEN, {"room": "2"})],
)
def test_a_call_that_shows_something_wrong_is_refused(
    server: Echo, token: str, shown: dict[str, str]
) -> None:
    with pytest.raises(CallRefused, match=server.address):
        ask(server, calls(token, **shown))


def test_an_error_of_the_server_is_raised_as_the_same_kind(server: Echo) -> None:
    with pytest.raises(Conflict, match="somebody else was first"):
        ask(server, calls(), "fail")


def test_an_unknown_call_is_refused_with_the_known_ones(server: Echo) -> None:
    with pytest.raises(UserError, match="unknown call 'dance'\n  known: echo, fail\n"):
        ask(server, calls(), "dance")


def test_a_call_beyond_the_limit_is_refused_by_name(server: Echo) -> None:
    assert ask(server, calls(), body=bytes(1000)) == bytes(1000)
    with pytest.raises(UserError, match=r"of 1001 bytes is too large\n  limit: 1000 \(a_limit\)"):
        ask(server, calls(), body=bytes(1001))


def test_a_call_to_nobody_was_surely_not_carried_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(CallCut) as cut:
        calls().ask(f"grpc://127.0.0.1:{port}", "echo", timeout_ms=10_000)
    assert not cut.value.may_be_done


def test_a_server_that_is_ending_surely_carries_nothing_out(server: Echo) -> None:
    server.admission.is_ending = True
    with pytest.raises(CallCut, match="this server is ending") as cut:
        ask(server, calls())
    assert not cut.value.may_be_done


def test_a_call_beyond_its_deadline_may_have_been_carried_out(server: Echo) -> None:
    with pytest.raises(CallCut) as cut:
        list(calls().receive(server.address, b"", timeout_ms=300))
    assert cut.value.may_be_done


def test_a_stream_that_goes_silent_is_cut(server: Echo) -> None:
    stream = calls().receive(server.address, b"", silent_ms=200)
    assert [bytes(value) for value in byte_values(next(stream))] == [b"one"]
    with pytest.raises(CallCut):
        next(stream)


def test_bytes_that_came_are_counted(server: Echo) -> None:
    def fetched() -> float:
        return sum(sample.value for sample in FETCHED_BYTES.samples("me"))

    server.goes_on.set()
    before = fetched()
    (chunk,) = calls().receive(server.address, b"")

    assert fetched() - before == chunk.nbytes


def test_a_taken_port_is_named_with_who_wanted_it(server: Echo) -> None:
    taken = ListenAddress(host="127.0.0.1", port=server.port)
    with pytest.raises(UserError, match=rf"the echo cannot listen on 127.0.0.1:{server.port}: "):
        Echo(taken)


def test_addresses_name_the_scheme_and_bracket_hosts_of_version_6() -> None:
    assert ListenAddress(host="::1").url(5) == "grpc://[::1]:5"
    assert HERE.url(5, "there") == "grpc://there:5"


def test_bytes_come_out_of_batches_as_they_went_in() -> None:
    data = pa.py_buffer(b"0123456789")
    rows = [bytes(value) for value in byte_values(byte_batch(data, (3, 0, 7)))]
    assert rows == [b"012", b"", b"3456789"]
    parts = [bytes(value) for batch in byte_batches(data, 4) for value in byte_values(batch)]
    assert parts == [b"0123", b"4567", b"89"]
