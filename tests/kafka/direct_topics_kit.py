"""Owners of journals on Kafka, and processes that joined them and read Kafka themselves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kafka.kafka_kit import PATIENT
from tests.unit.transport.direct_kit import sees
from tests.unit.transport.owner_kit import QUICK, client_of, place_at

from millrace.config import Config
from millrace.faults import VARIABLE
from millrace.journal.kafka.kafka_broker import KafkaBroker
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.journal_owner import Owner

OUTLASTING = QUICK.with_options(owner_backoff_ms=100, owner_retries_max=10)
"""A process that waits for the next owner."""
DIRECT = QUICK.with_options(journal_inline_bytes_max=1, kafka_inline_bytes_max=1)
"""All rows are written by the process that has them."""
SHORT = QUICK.with_options(kafka_direct_ms_max=1_000)
"""A process that soon leaves a read to the owner."""


@dataclass(slots=True)
class Joined:
    """An owner in this process, a process that joined it, and what the owner read for it."""

    owner: Owner
    broker: KafkaBroker
    client: JoinedBroker
    served: list[str]
    sent: list[str]
    """What the owner wrote for it."""


@contextmanager
def joined(
    url: str, path: Path, config: Config = QUICK, owners: Config = PATIENT
) -> Iterator[Joined]:
    broker = KafkaBroker.open(url, str(path / "journals"), owners)
    owner = Owner.open(place_at(path, open_broker=lambda: broker))
    served: list[str] = []
    plain, many = broker.read, broker.read_many

    def read(name: str, *args: object, **named: object) -> object:
        served.append(name)
        return plain(name, *args, **named)  # type: ignore[arg-type]

    def read_many(*args: object, **named: object) -> object:
        served.append("many")
        return many(*args, **named)  # type: ignore[arg-type]

    sent: list[str] = []

    def noting(name: str) -> Callable[..., object]:
        write = getattr(broker, name)

        def wrote(*args: object, **named: object) -> object:
            sent.append(name)
            return write(*args, **named)

        return wrote

    with pytest.MonkeyPatch.context() as patch:
        for name in ("append", "append_stamped", "publish"):
            patch.setattr(broker, name, noting(name))
        patch.setattr(broker, "read", read)
        patch.setattr(broker, "read_many", read_many)
        client = client_of(owner, config)
        yield Joined(owner, broker, client, served, sent)
        client.close()
        owner.close()


def child_owns(url: str, path: str, point_file: str) -> None:
    """Own the journals until a point is reached that the file names."""
    os.environ[VARIABLE] = f"@{point_file}"
    journals = os.path.join(path, "journals")
    Owner.open(place_at(Path(path), open_broker=lambda: KafkaBroker.open(url, journals, PATIENT)))
    threading.Event().wait()


def child_follows(path: str, out: str, wanted: int) -> None:
    """Read a journal on until so many rows are here, and write each value down."""
    client = sees(path, OUTLASTING)
    at = 0
    with open(out, "a", encoding="ascii") as file:
        while at < wanted:
            client.wait_for_rows({"a": at}, timeout_s=1)
            fetched = client.read("a", at, rows_max=50)
            file.writelines(f"{value}\n" for value in fetched.rows()["x"].to_pylist())
            file.flush()
            at = int(fetched.next_offset)
    client.close()
