"""A process with every kind of server in it, to be attacked: `python -m ... folder config [tls]`.

It says where they answer, as JSON, and runs until its input ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from tests.unit.transport.agent_kit import make_host
from tests.unit.transport.owner_kit import SCHEMA, TOKEN, column, place_at

import millrace as mr
from millrace.config import Config
from millrace.ids import AttemptId
from millrace.transport.agent.agent_lease import AgentLease
from millrace.transport.agent.agent_server import AgentServer, now_ms
from millrace.transport.agent.host_folder import Hosting
from millrace.transport.flight.guarded_server import ListenAddress
from millrace.transport.flight.tls import own_certificate
from millrace.transport.members.member_server import SessionId
from millrace.transport.members.served_member import MemberSeat, ServedMember
from millrace.transport.owner.journal_owner import Owner
from millrace.transport.streams.stream_server import StreamServer, StreamShare

READ = "attacked"
SESSION = SessionId(read=READ, epoch=7, token=TOKEN)


class Numbers:
    """The rows of a stream: the members and checkpoints that were asked for."""

    schema = SCHEMA

    def rows(self, piece: StreamShare) -> Iterator[pa.RecordBatch]:
        yield column(piece.member, piece.end)


def main(folder: Path, config: Config) -> None:
    certificate = own_certificate(os.environ)
    place = dataclasses.replace(place_at(folder / "mill", config), certificate=certificate)
    owner = Owner.open(place)
    owner.broker.create("a", SCHEMA)
    owner.broker.append("a", column(1, 2, 3))
    host = make_host(folder / "host")
    host.write(AttemptId.of(1, 0, 0, 1), [1, 2, 3])
    agent = AgentServer(
        ListenAddress(host="127.0.0.1", certificate=certificate),
        Hosting.one(host.store.root),
        lease=AgentLease(None, now_ms()),
        config=config,
        instance="attacked",
    )
    seat = MemberSeat(
        number=0,
        members=1,
        read=mr.CoordinatedRead(READ, [mr.Binding(name="all", prefix="t", key="x")]),
        session=SESSION,
        config=config,
        folder=str(folder),
        certificate=certificate,
    )
    member = ServedMember(seat, owner.broker)
    stream = StreamServer(
        "127.0.0.1", Numbers(), read=READ, token=TOKEN, config=config, certificate=certificate
    )
    said = {
        "owner": owner.endpoint.address,
        "live": owner.endpoint.address,
        "agent": agent.address,
        "agent_folder": host.folder,
        "member": member.address,
        "stream": stream.address,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Config(**json.loads(sys.argv[2])))
