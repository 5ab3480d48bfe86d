"""What an agent answers, and to whom."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.transport.agent_kit import TOKEN, Host, Serve, Serving, make_host

from millrace.config import Config
from millrace.errors import (
    AgentUnreachable,
    Corrupt,
    DataLost,
    MapOutputMissing,
    UserError,
)
from millrace.ids import AttemptId
from millrace.shuffle import reader
from millrace.storage import layout
from millrace.transport.agent import agent_messages, host_folder
from millrace.transport.agent.remote_outputs import Agents
from millrace.transport.flight import wire
from millrace.transport.flight.tls import certificate
from millrace.version import __version__

FIRST = AttemptId.of(100, 2, 7, 1)
SECOND = AttemptId.of(100, 2, 7, 2)
MADE_FROM = {"inputs": [{"path": "a.parquet", "size": 1}], "scan": {}}


def changed(**values: object) -> bytes:
    """A ticket for all of the first partition, but for these fields."""
    numbers = {"query_id": 100, "stage_id": 2, "map_task": 7, "attempt": 1}
    part = {**numbers, "partition": 0, "start": 0, **values}
    return json.dumps({"ranges": [part], "chunk_bytes": 7}).encode()


def call(
    serving: Serving, host: Host, *, token: str | None = TOKEN, **headers: str
) -> tuple[fl.FlightClient, fl.FlightCallOptions]:
    """Call options as a client would send them."""
    sent = {agent_messages.FOLDER_HEADER: host.folder, **headers}
    if token is not None:
        sent[wire.TOKEN_HEADER] = f"Bearer {token}"
    pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
    return fl.connect(serving.address), fl.FlightCallOptions(headers=pairs, timeout=10)


def rows(data: pa.Buffer, schema: pa.Schema) -> list[int]:
    return [n for batch in reader.decode(data, schema) for n in batch.column("n").to_pylist()]


def test_it_says_who_it_is(host: Host, serve: Serve) -> None:
    pong = serve(host).agents.ping(host.folder)

    assert (pong.folder, pong.version, pong.instance) == (host.folder, __version__, "test")


def test_a_partition_arrives_as_it_was_written(host: Host, serve: Serve) -> None:
    index = host.write(FIRST, list(range(1000)))
    agents = serve(host).agents

    assert agents.index(host.folder, FIRST) == index
    for meta in index.partitions:
        data = agents.fetch(host.folder, FIRST, meta)
        assert data.equals(reader.map_partition(host.store, FIRST, meta))
        assert len(rows(data, index.schema)) == meta.rows


def test_three_rows_in_7_byte_chunks_are_the_same_three_rows(host: Host, serve: Serve) -> None:
    index = host.write(FIRST, [1, 2, 3], partitions=1)
    serving = serve(host, Config(fetch_chunk_bytes=7))
    client, options = call(serving, host)
    ticket = fl.Ticket(changed())

    assert len(list(client.do_get(ticket, options))) > 1
    data = serving.agents.fetch(host.folder, FIRST, index.partitions[0])
    assert rows(data, index.schema) == [1, 2, 3]
    client.close()


@given(chunk_bytes=st.integers(1, 5000), start=st.integers(0, 5000))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_bytes_are_equal_whatever_the_chunk_size_and_the_start(
    host: Host, serve: Serve, chunk_bytes: int, start: int
) -> None:
    if not host.store.exists(layout.attempt_folder(FIRST)):
        host.write(FIRST, list(range(500)), partitions=1)
    index = reader.read_index(host.store, FIRST.task, FIRST.attempt)
    meta = index.partitions[0]
    start = min(start, meta.bytes)
    serving = serve(host)
    which = agent_messages.WhichAttempt(FIRST.task, FIRST.attempt)
    ticket = agent_messages.Ticket(
        (agent_messages.ByteRange(which, meta.reduce_partition, start),), chunk_bytes
    )

    chunks = serving.agents.calls.chunks(
        serving.address, host.folder, ticket, bytes_left=meta.bytes - start
    )

    got = b"".join(chunk.to_pybytes() for chunk in chunks)
    assert got == reader.map_partition(host.store, FIRST, meta).to_pybytes()[start:]


def test_many_partitions_arrive_in_the_order_asked_for(host: Host, serve: Serve) -> None:
    attempts = [AttemptId.of(100, 2, task, 1) for task in range(5)]
    indexes = [host.write(attempt, list(range(1000))) for attempt in attempts]
    wanted = [(host.folder, index.id, meta) for index in indexes for meta in index.partitions]
    largest = max(meta.bytes for _, _, meta in wanted)

    for config in (
        Config(),
        Config(fetch_ranges_max=3),
        Config(fetch_memory_bytes_max=largest * 2),
        Config(fetch_memory_bytes_max=1),
    ):
        fetched = list(serve(host, config).agents.fetch_all(reversed(wanted)))
        local = [reader.map_partition(host.store, i, meta) for _, i, meta in reversed(wanted)]
        assert all(map(pa.Buffer.equals, fetched, local))


def test_partitions_of_several_hosts_arrive_in_the_order_asked_for(
    host: Host, serve: Serve, tmp_path: Path
) -> None:
    other = make_host(tmp_path / "other")
    indexes = {h.folder: h.write(FIRST, list(range(50)), partitions=8) for h in (host, other)}
    addresses = {host.folder: serve(host).address, other.folder: serve(other).address}
    agents = Agents(token=TOKEN, config=Config(), address_of=addresses.get)
    stores = {host.folder: host.store, other.folder: other.store}
    wanted = [(f, FIRST, indexes[f].partitions[n]) for n in range(8) for f in stores]

    fetched = agents.fetch_all(wanted)

    for (folder, attempt, meta), data in zip(wanted, fetched, strict=True):
        assert data.equals(reader.map_partition(stores[folder], attempt, meta))
    agents.close()


def test_an_empty_partition_is_recorded_as_empty(host: Host, serve: Serve) -> None:
    index = host.write(FIRST, [1])
    agents = serve(host).agents

    sizes = [agents.fetch(host.folder, FIRST, meta).size for meta in index.partitions]

    assert sorted(size > 0 for size in sizes) == [False, False, False, True]


def test_the_latest_attempt_is_found_as_soon_as_it_is_there(host: Host, serve: Serve) -> None:
    agents = serve(host).agents
    with pytest.raises(MapOutputMissing, match="registered attempts: none"):
        agents.latest(host.folder, FIRST.task)

    host.write(FIRST, [10])
    assert agents.latest(host.folder, FIRST.task).id == FIRST
    host.write(SECOND, [20])
    assert agents.latest(host.folder, FIRST.task).id == SECOND


def test_an_attempt_that_is_not_there_is_an_error_that_names_what_is(
    host: Host, serve: Serve
) -> None:
    host.write(SECOND, [20])

    with pytest.raises(MapOutputMissing) as raised:
        serve(host).agents.index(host.folder, FIRST)

    assert str(raised.value) == (
        "map output not registered for requested attempt\n"
        "  asked for: query 100, stage 2, map task 7, attempt 1\n"
        "  registered attempts: 2\n"
        "  to fix: ask for attempt 2"
    )


def test_an_attempt_that_was_removed_is_not_answered_from_memory(host: Host, serve: Serve) -> None:
    host.write(FIRST, [10])
    agents = serve(host).agents
    agents.index(host.folder, FIRST)

    host.store.discard(layout.attempt_folder(FIRST))

    with pytest.raises(MapOutputMissing):
        agents.index(host.folder, FIRST)


def test_more_attempts_than_it_remembers_are_all_served(host: Host, serve: Serve) -> None:
    agents = serve(host, Config(agent_indexes_max=2)).agents
    ids = [AttemptId.of(100, 2, task, 1) for task in range(5)]
    for attempt in ids:
        host.write(attempt, [attempt.task.map_task])

    assert [agents.index(host.folder, attempt).id for attempt in ids * 2] == ids * 2


def test_a_damaged_index_is_corrupt_at_the_client(host: Host, serve: Serve) -> None:
    host.write(FIRST, [10])
    folder = layout.attempt_folder(FIRST)
    for name in (layout.INDEX_BIN, layout.INDEX_JSON):
        host.store.replace(f"{folder}/{name}", b"nothing that is an index")

    with pytest.raises(Corrupt, match="index"):
        serve(host).agents.index(host.folder, FIRST)


def test_a_flipped_byte_on_the_agents_disk_is_corrupt_at_the_client(
    host: Host, serve: Serve
) -> None:
    index = host.write(FIRST, list(range(100)), partitions=1)
    path = host.payload(index, 0)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    with pytest.raises(Corrupt, match="wrong checksum"):
        serve(host).agents.fetch(host.folder, FIRST, index.partitions[0])


def test_a_file_cut_short_is_corrupt_and_a_deleted_one_is_lost(host: Host, serve: Serve) -> None:
    index = host.write(FIRST, list(range(100)), partitions=1)
    agents = serve(host).agents
    path = host.payload(index, 0)

    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corrupt, match="cut short"):
        agents.fetch(host.folder, FIRST, index.partitions[0])

    path.unlink()
    with pytest.raises(DataLost, match="is gone"):
        agents.fetch(host.folder, FIRST, index.partitions[0])


def test_finished_work_is_found_by_what_it_was_made_from(host: Host, serve: Serve) -> None:
    index = host.write(FIRST, [10], made_from=MADE_FROM)
    other = {"inputs": [{"path": "b.parquet", "size": 1}], "scan": {}}

    found = serve(host).agents.find(host.folder, [other, MADE_FROM, other], verify=True)

    assert found == [None, index, None]


def test_many_questions_are_sent_in_parts_that_an_agent_reads(host: Host, serve: Serve) -> None:
    index = host.write(FIRST, [10], made_from=MADE_FROM)
    agents = serve(host, Config(agent_request_bytes_max=1000)).agents

    assert agents.find(host.folder, [MADE_FROM] * 50) == [index] * 50


def test_work_over_recent_files_counts_only_if_their_bytes_can_be_seen(
    host: Host, serve: Serve, tmp_path: Path
) -> None:
    gone = os.fspath(tmp_path / "on-another-host.parquet")
    host.write(FIRST, [10], made_from=MADE_FROM, recent={gone: "00" * 16})

    assert serve(host).agents.find(host.folder, [MADE_FROM]) == [None]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
def test_a_wrong_token_is_a_user_error(host: Host, serve: Serve, token: str) -> None:
    index = host.write(FIRST, [10], partitions=1)
    agents = serve(host, token=token).agents

    with pytest.raises(UserError, match="refuses folder"):
        agents.ping(host.folder)
    with pytest.raises(UserError, match="refuses folder"):
        agents.fetch(host.folder, FIRST, index.partitions[0])


def test_a_call_without_token_or_folder_is_refused_whatever_it_asks(
    host: Host, serve: Serve
) -> None:
    serving = serve(host)
    for bad in (
        {"token": None},
        {agent_messages.FOLDER_HEADER: "../" + host.folder},
        {"token": "x"},
    ):
        client, options = call(serving, host, **bad)
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(client.do_action(fl.Action("ping", b""), options))
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(client.do_get(fl.Ticket(b"{}"), options))
        with pytest.raises(fl.FlightUnauthenticatedError):
            client.list_actions(options)
        client.close()


def test_a_changed_token_counts_at_once(host: Host, serve: Serve) -> None:
    serving = serve(host)
    serving.agents.ping(host.folder)

    host_folder.write_token(host.store, "another token of tests")

    with pytest.raises(UserError, match="refuses folder"):
        serving.agents.ping(host.folder)


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"/etc/passwd",
        b'"../../../etc/passwd"',
        changed(query_id="../../.."),
        changed(partition=-1),
        changed(partition=99),
        changed(start=2**64 - 1),
        b"x" * 3000,
    ],
)
def test_a_ticket_that_names_no_bytes_of_the_folder_is_refused(
    host: Host, serve: Serve, ticket: bytes
) -> None:
    host.write(FIRST, [1, 2, 3], partitions=1)
    serving = serve(host, Config(agent_request_bytes_max=2000))
    client, options = call(serving, host)

    with pytest.raises(fl.FlightServerError) as raised:
        list(client.do_get(fl.Ticket(ticket), options))

    assert isinstance(wire.decode_error(raised.value.extra_info), UserError)
    serving.agents.ping(host.folder)  # And the agent lives on.
    client.close()


def test_an_unknown_action_names_the_known_ones(host: Host, serve: Serve) -> None:
    client, options = call(serve(host), host)

    with pytest.raises(fl.FlightServerError) as raised:
        list(client.do_action(fl.Action("shutdown", b""), options))

    assert "known: find, index, keep, ping, renew" in str(
        wire.decode_error(raised.value.extra_info)
    )
    client.close()


def test_with_a_certificate_bytes_travel_over_tls(
    host: Host, serve: Serve, certificate_files: tuple[Path, Path]
) -> None:
    index = host.write(FIRST, [1, 2, 3], partitions=1)
    chain, key = certificate_files
    shown = certificate(os.fspath(chain), os.fspath(key))

    trusting = serve(host, certificate=shown, roots=chain.read_bytes()).agents

    assert trusting.fetch(host.folder, FIRST, index.partitions[0]).size
    with pytest.raises(AgentUnreachable):
        serve(host, Config(fetch_retries_max=1), certificate=shown).agents.ping(host.folder)


def test_a_certificate_without_its_key_is_a_user_error(
    certificate_files: tuple[Path, Path],
) -> None:
    with pytest.raises(UserError, match="give the key too"):
        certificate(os.fspath(certificate_files[0]), None)
