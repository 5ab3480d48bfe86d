"""Owners of journals in this process, and clients of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.journal.embedded.embedded_broker import EmbeddedBroker
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import OwnedWorkspace, Owner
from millrace.transport.owner.owner_endpoint import JournalAddress

SCHEMA = pa.schema([("x", pa.int64())])
TOKEN = "a-token-for-tests"  # noqa: S105
WORKSPACE = "0123456789abcdef"
QUICK = Config().with_options(
    owner_backoff_ms=1,
    owner_timeout=60,
    owner_ping_ms_max=20_000,
    gone_after=60,
)


def place_at(
    path: Path,
    config: Config = QUICK,
    open_broker: Callable[[], Broker] | None = None,
) -> OwnedWorkspace:
    path.mkdir(exist_ok=True)
    known = path / "workspace.json"
    if not known.exists():
        known.write_text(json.dumps({"version": 1, "id": WORKSPACE}))
    return OwnedWorkspace(
        path=str(path),
        workspace_id=WORKSPACE,
        token=TOKEN,
        kind="embedded",
        open_broker=open_broker or (lambda: EmbeddedBroker.open(str(path / "journals"), config)),
        config=config,
    )


def client_of(owner: Owner, config: Config = QUICK, token: str = TOKEN) -> JoinedBroker:
    """A client that knows nothing but where the owner answers."""
    where = JournalAddress(address=owner.endpoint.address, token=token, workspace_id=WORKSPACE)
    return join_journals(where, config)


def column(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def all_values(broker: Broker, name: str) -> list[int]:
    found: list[int] = []
    at = int(broker.start_offset(name))
    while (fetched := broker.read(name, at)).next_offset > at:
        found += fetched.rows()["x"].to_pylist()
        at = fetched.next_offset
    return found
