"""Members over Flight: their streams, what they refuse, and how a session ends when one is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from tests.unit.reads.kit import (
    LONG_S,
    SCHEMA,
    P,
    Q,
    a_read,
    ack,
    alone,
    check_nothing_else_is_shown,
    next_shown,
    row,
    run_of,
    shown,
    write,
)
from tests.unit.transport.members.flight_kit import Opened, Processes, Way, as_processes, through
from tests.unit.transport.owner_kit import TOKEN, WORKSPACE, place_at

from millrace.config import KIB, Config
from millrace.errors import MemberLost, ReadsFailed, UserError
from millrace.journal.memory import MemoryBroker
from millrace.reads.api import ReadSession
from millrace.reads.member import Member
from millrace.reads.queue.queue_messages import Flush, QueueRows
from millrace.reads.session.members_port import MembersRequest
from millrace.reads.session_run import SessionOptions, SessionWorkspace
from millrace.transport.flight.byte_batches import BYTES, byte_batch
from millrace.transport.members import member_server
from millrace.transport.members.flight_members import FlightMembers, InProcess, Streams
from millrace.transport.members.member_client import MemberClient
from millrace.transport.members.member_messages import (
    FROM_QUEUE,
    TO_QUEUE,
    decode,
    encode,
    unwrapped,
)
from millrace.transport.members.member_server import SessionId
from millrace.transport.members.served_member import ServedMember
from millrace.transport.members.stream_opening import StreamOpening
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.owner.owner_endpoint import JournalAddress

CONFIG = Config().with_options(reads_lease=60)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    broker = MemoryBroker()
    for name in "ab":
        broker.create(f"t/{name}", SCHEMA)
    yield broker
    broker.close()


@pytest.fixture
def opened() -> Opened:
    return Opened()


def texts(begin: int, end: int) -> list[str]:
    return [f"row {number}" for number in range(begin, end)]


def put(broker: MemoryBroker, rows: list[str], clock: int) -> None:
    """Rows in journal a, committed together."""
    stamped = [row(P, clock + number, text) for number, text in enumerate(rows)]
    write(broker, "t/a", *stamped, ack(P, clock + len(rows)))


def test_ten_members_have_110_streams_of_which_100_are_over_flight(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    with opened.session(broker, tmp_path, a_read(), CONFIG, members=10) as session:
        members = opened.made[0]
        assert members.members.streams() == Streams(total=110, over_flight=100)
        told = [members.members.client(number).stats() for number in range(10)]
        assert [each.streams for each in told] == [10] * 10  # Its slice's, and nine slices'.
        put(broker, texts(0, 200), 10)
        assert next_shown(session) == sorted(texts(0, 200))
        status = session.status()
        assert len(status.disk_bytes) == 10
        sent = {(one.sender, one.receiver): one.rows for one in status.streams}
        (reader,) = {sender for sender, _ in sent}
        assert len(sent) == 10, "the keys of each member are among them"
        assert sum(sent.values()) == 200
        assert all(one.bytes >= one.unanswered_bytes for one in status.streams)
        assert status.streams[0].sender == reader


def test_what_is_being_read_stays_when_its_checkpoint_is_committed(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    put(broker, texts(0, 500), 10)
    with opened.session(broker, tmp_path, a_read(), CONFIG, members=2) as session:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None
        reading = [session.batches(member, checkpoint) for member in range(2)]
        session.commit(checkpoint)
        found = [text for some in reading for batch in some for text in batch["what"].to_pylist()]
        assert sorted(found) == sorted(texts(0, 500))


def test_large_rows_come_in_bounded_pieces(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    config = CONFIG.with_options(reads_message_bytes_target=64 * KIB)
    large = [f"{number:03d}" + "x" * 20_000 for number in range(100)]
    put(broker, large, 10)
    with opened.session(broker, tmp_path, a_read(), config, members=2) as session:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None
        batches = [batch for member in range(2) for batch in session.batches(member, checkpoint)]
        assert max(batch.nbytes for batch in batches) < 128 * KIB
        assert shown(session, checkpoint) == sorted(large)


@pytest.mark.parametrize("size", [40_000, 300_000, 1_200_000, 3_000_000])
def test_many_rows_arrive_where_they_can_be_used_without_a_copy(size: int) -> None:
    """Not promised by Flight: should this fail with a new pyarrow, rows are copied once more."""
    found: list[int] = []

    class Server(fl.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, *given: Any) -> None:  # noqa: ANN401
            chunk = given[2].read_chunk()
            body = unwrapped(chunk.data)
            assert body is not None
            rows = decode(TO_QUEUE, chunk.app_metadata, body, CONFIG.reads_envelope_bytes_max)
            assert rows.batch["v"].to_pylist() == ["x" * size]
            found.append(body.address % 8)

    stamps = {name: pa.array([1], pa.int64()) for name in ("_mr_tag", "_mr_producer", "_mr_offset")}
    batch = pa.record_batch({**stamps, "_mr_clock": pa.array([1], pa.uint64()), "v": ["x" * size]})
    sealed = encode(TO_QUEUE, QueueRows(1, batch), CONFIG.reads_envelope_bytes_max)
    assert sealed.body is not None
    with (
        Server("grpc://127.0.0.1:0") as there,
        fl.connect(f"grpc://127.0.0.1:{there.port}") as near,
    ):
        writer, reader = near.do_exchange(fl.FlightDescriptor.for_command(b""))
        writer.begin(BYTES)
        writer.write_with_metadata(byte_batch(sealed.body), pa.py_buffer(sealed.envelope))
        with pytest.raises(StopIteration):
            reader.read_chunk()
        writer.close()
    assert found == [0]


# What is refused.
def client_of(opened: Opened, number: int, session: SessionId | None = None) -> MemberClient:
    served = opened.made[0].served[number]
    mine = session or served._seat.session
    return MemberClient(number, served.address, session=mine, config=CONFIG)


def test_calls_without_the_token_or_of_another_session_are_refused(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    with opened.session(broker, tmp_path, a_read(), CONFIG):
        right = opened.made[0].served[0]._seat.session
        for wrong in (
            SessionId(read=right.read, epoch=right.epoch, token="guessed"),  # noqa: S106
            SessionId(read=right.read, epoch=right.epoch - 1, token=right.token),
            SessionId(read="another", epoch=right.epoch, token=right.token),
        ):
            client = client_of(opened, 0, wrong)
            with pytest.raises(MemberLost, match="refuses this session's token or epoch"):
                client.stats()
            client.close()


def test_a_second_stream_of_a_slice_or_of_a_session_is_refused(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    with opened.session(broker, tmp_path, a_read(), CONFIG) as session:
        client = client_of(opened, 0)
        for slice_, why in ((1, "has a stream of slice 1 already"), (7, "has no stream 7")):
            opening = StreamOpening(
                [client],
                slice_=slice_,
                says=TO_QUEUE,
                hears=FROM_QUEUE,
                on_message=lambda *_: None,
                on_lost=lambda *_: None,
                config=CONFIG,
            )
            with pytest.raises(UserError, match=why):
                opening.links()
            opening.close()
        put(broker, texts(0, 5), 10)  # Those that are open are none the worse.
        assert next_shown(session) == texts(0, 5)
        client.close()


def test_unknown_actions_and_streams_and_tickets_are_refused_and_harm_nobody(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    with opened.session(broker, tmp_path, a_read(), CONFIG) as session:
        client = client_of(opened, 0)
        with pytest.raises(UserError, match="unknown call 'dance'"):
            client._ask("dance")
        with pytest.raises(UserError, match="not what a checkpoint shows"):
            client._ask(member_server.RELEASE, b"nonsense")
        with client.connection() as raw:
            with pytest.raises(fl.FlightServerError):
                list(raw.do_get(fl.Ticket(b"nonsense of some length"), client.options()))
            writer, reader = raw.do_exchange(
                fl.FlightDescriptor.for_command(b"[]"), client.options()
            )
            with pytest.raises((fl.FlightServerError, pa.ArrowException)):
                reader.read_chunk()
            del writer
        put(broker, texts(0, 5), 10)
        assert next_shown(session) == texts(0, 5)
        client.close()


# Opening.
def test_a_member_that_cannot_be_reached_fails_the_opening_by_name(
    broker: MemoryBroker, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(_address: str) -> str:
        return "grpc://127.0.0.1:1"

    told = through(nowhere, 1, 2)
    given = ServedMember._open
    monkeypatch.setattr(
        ServedMember, "_open", lambda self, them: given(self, told(self.number, them))
    )
    place = SessionWorkspace(broker, str(tmp_path), CONFIG, opened.maker(broker, CONFIG))
    with pytest.raises(ReadsFailed, match=r"member 1 lost member 2\n.*127.0.0.1:1") as failed:
        ReadSession(place, a_read(), SessionOptions(members=3, holder="test"))
    assert "could not be opened: member 2 at grpc://" in str(failed.value)
    assert all(served.ended.is_set() for served in opened.made[0].served)
    assert not any(tmp_path.rglob("*.seg*"))
    with opened.session(broker, tmp_path / "next", a_read("another"), CONFIG) as session:
        put(broker, texts(0, 5), 10)
        assert next_shown(session) == texts(0, 5)


def test_a_member_that_never_answers_fails_the_opening_after_a_named_limit(
    broker: MemoryBroker, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CONFIG.with_options(reads_open_ms_max=500)
    monkeypatch.setattr(ServedMember, "_open", lambda _self, _them: None)
    place = SessionWorkspace(broker, str(tmp_path), config, opened.maker(broker, config))
    with pytest.raises(ReadsFailed, match=r"(?s)member 0 at grpc.*reads_open_ms_max"):
        ReadSession(place, a_read(), SessionOptions(members=2, holder="test"))


# Losing a member, or the way to it.
@pytest.mark.parametrize("how", ["stall", "cut"])
def test_a_way_between_two_members_that_is_cut_fails_the_session_at_once(
    how: str,
    broker: MemoryBroker,
    opened: Opened,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways: list[Way] = []

    def way(address: str) -> str:
        ways.append(Way(address))
        return ways[-1].address

    told = through(way, 0, 1)
    given = ServedMember._open
    monkeypatch.setattr(
        ServedMember, "_open", lambda self, them: given(self, told(self.number, them))
    )
    with opened.session(broker, tmp_path, a_read(), CONFIG) as session:
        put(broker, texts(0, 50), 10)
        assert next_shown(session) == sorted(texts(0, 50))
        getattr(ways[0], how)()
        near, far = opened.made[0].served
        for link in (near._to_queues[1], far._from_slices[0]):
            link._silent_s = 0.5  # Only of what is cut: others may be slow on a busy machine.
        put(broker, texts(50, 100), 100)
        with pytest.raises(ReadsFailed, match=r"member [01] lost member [01]"):
            until_it_fails(session)
        ways[0].cut()
    with opened.session(broker, tmp_path, a_read(), CONFIG, members=3) as session:
        assert next_shown(session) == sorted(texts(50, 100))


def test_a_member_whose_session_goes_silent_ends_by_itself(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    config = CONFIG.with_options(reads_stop_ms_max=500)
    made: list[InProcess] = []
    ways: list[Way] = []

    def make(wanted: MembersRequest) -> InProcess:
        made.append(InProcess(wanted, broker, config))
        served = made[0].served
        ways.extend(Way(each.address) for each in served)
        addresses = [way.address for way in ways]
        session = served[0]._seat.session
        made[0].members = FlightMembers(wanted, addresses, session=session, config=config)
        return made[0]

    place = SessionWorkspace(broker, str(tmp_path), config, make)
    with ReadSession(place, a_read(), SessionOptions(members=1, holder="test")) as session:
        (served,) = made[0].served
        near, far = made[0].members._links[0], served._session
        assert far is not None
        ways[0].stall()
        near._silent_s = far._silent_s = 0.5
        with pytest.raises(
            ReadsFailed, match=r"(?s)member 0 failed.*nothing was heard of member 0"
        ):
            until_it_fails(session)
        assert served.ended.wait(LONG_S)
        ways[0].cut()


def test_a_commit_that_was_stored_is_told_so_though_a_member_is_lost_meanwhile(
    broker: MemoryBroker, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_self: MemberClient, *_given: object) -> None:
        raise MemberLost("gone just then")

    with opened.session(broker, tmp_path, a_read(), CONFIG) as session:
        put(broker, texts(0, 5), 10)
        checkpoint = session.next_checkpoint(LONG_S)
        assert shown(session, checkpoint) == texts(0, 5)
        assert checkpoint is not None
        monkeypatch.setattr(MemberClient, "release", gone)
        session.commit(checkpoint)
        with pytest.raises(ReadsFailed, match="gone just then"):
            session.next_checkpoint(LONG_S)
    put(broker, texts(5, 9), 100)
    with opened.session(broker, tmp_path, a_read(), CONFIG, members=1) as session:
        assert next_shown(session) == texts(5, 9)


def test_rows_of_a_member_that_is_gone_fail_the_session_also_before_the_first_came(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    config = CONFIG.with_options(reads_stop_ms_max=500)
    put(broker, texts(0, 5), 10)
    with opened.session(broker, tmp_path, a_read(), config) as session:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None
        opened.made[0].members._clients[1].address = "grpc://127.0.0.1:1"
        with pytest.raises(ReadsFailed, match="rows of member 1 could not be read"):
            session.read(1, checkpoint)
        with pytest.raises(ReadsFailed, match="member 1 failed"):
            session.next_checkpoint(0)


def test_members_speak_tls_where_certificates_are_given(
    broker: MemoryBroker,
    opened: Opened,
    tmp_path: Path,
    certificate_files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate, key = certificate_files
    monkeypatch.setenv("MILLRACE_TLS_CERT", str(certificate))
    monkeypatch.setenv("MILLRACE_TLS_KEY", str(key))
    monkeypatch.setenv("MILLRACE_TLS_CA", str(certificate))
    with opened.session(broker, tmp_path, a_read(), CONFIG) as session:
        assert {each.address.split(":")[0] for each in opened.made[0].served} == {"grpc+tls"}
        put(broker, texts(0, 50), 10)
        assert next_shown(session) == sorted(texts(0, 50))


def until_it_fails(session: ReadSession) -> None:
    """What came through before may be shown; not committed, it comes again."""
    while session.next_checkpoint(LONG_S) is not None:
        pass


def test_a_slice_is_not_held_up_by_a_peer_that_takes_nothing(
    broker: MemoryBroker, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a stuck peer is bounded by the window, and closing does not wait for it."""
    window, message = 64 * KIB, 16 * KIB
    config = CONFIG.with_options(
        reads_window_bytes_max=window, reads_message_bytes_target=message, reads_stop_ms_max=1000
    )
    stuck: SimpleQueue[tuple[int, int]] = SimpleQueue()
    go_on = threading.Event()
    taken = Member.on_rows

    def on_rows(self: Member, stream: int, message: QueueRows | Flush) -> None:
        if stream != self.number:
            stuck.put((self.number, stream))
            go_on.wait(LONG_S)
        taken(self, stream, message)

    monkeypatch.setattr(Member, "on_rows", on_rows)
    try:
        with opened.session(broker, tmp_path, a_read(), config) as session:
            put(broker, [f"{number} " + "x" * 1000 for number in range(2000)], 10)
            queue, slice_ = stuck.get(timeout=LONG_S)
            write(broker, "t/b", alone(Q, 5, "another"))
            while not run_of(session)._actor.state._pushed_back:
                assert session.next_checkpoint(0.01) is None
            assert session.next_checkpoint(0) is None  # Its flush waits behind the rows.
            link = opened.made[0].served[slice_]._to_queues[queue]
            assert link.unsent * message <= window + 2 * message
    finally:
        go_on.set()


def test_closing_with_full_queues_that_push_back_does_not_hang(
    broker: MemoryBroker, opened: Opened, tmp_path: Path
) -> None:
    config = CONFIG.with_options(
        reads_disk_bytes_max=64 * KIB,
        reads_window_bytes_max=64 * KIB,
        reads_message_bytes_target=16 * KIB,
        reads_block_bytes_target=16 * KIB,
    )
    put(broker, [f"{number} " + "x" * 1000 for number in range(2000)], 10)
    ended = threading.Event()

    def open_and_close() -> None:
        with opened.session(broker, tmp_path, a_read(), config, members=3) as session:
            while not run_of(session)._actor.state._pushed_back:
                session.next_checkpoint(0.01)
        ended.set()

    threading.Thread(target=open_and_close, daemon=True).start()
    assert ended.wait(LONG_S)


def test_a_member_process_that_is_killed_fails_the_session_and_the_next_is_exact(
    tmp_path: Path,
) -> None:
    owner = Owner.open(place_at(tmp_path / "mill"))
    broker = owner.broker
    for name in "ab":
        broker.create(f"t/{name}", SCHEMA)
    ids = {name: broker.get(f"t/{name}").id for name in "ab"}
    where = JournalAddress(address=owner.endpoint.address, token=TOKEN, workspace_id=WORKSPACE)
    made: list[Processes] = []
    hosts = tmp_path / "hosts"
    place = SessionWorkspace(
        broker, str(tmp_path), CONFIG, as_processes(where, CONFIG, hosts, made)
    )
    try:
        with ReadSession(place, a_read(), SessionOptions(members=2, holder="test")) as session:
            write(broker, "t/a", *[alone(Q, 10 + n, text) for n, text in enumerate(texts(0, 200))])
            assert next_shown(session) == sorted(texts(0, 200))
            write(broker, "t/a", *[row(P, 10 + n, text) for n, text in enumerate(texts(200, 300))])
            write(broker, "t/a", ack(P, 1000, [ids["b"]]))
            os.kill(made[0].running[1].pid, signal.SIGKILL)
            with pytest.raises(ReadsFailed, match="member 1 failed"):
                session.next_checkpoint(LONG_S)
        assert [each.returncode for each in made[0].running] == [0, -signal.SIGKILL]
        write(broker, "t/b", row(P, 11, "the other half"), ack(P, 1000, [ids["a"]]))
        with ReadSession(place, a_read(), SessionOptions(members=3, holder="test")) as session:
            assert next_shown(session) == sorted([*texts(200, 300), "the other half"])
            check_nothing_else_is_shown(session, broker, "t/a", "t/b")
        assert [each.returncode for each in made[1].running] == [0, 0, 0]
        assert list(hosts.iterdir()) == []  # What the killed one left was swept by the next.
    finally:
        owner.close()
