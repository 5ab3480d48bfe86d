"""The processes of a history: hosts that own journals, and their clients. Each may be killed.

What they are about to do, are told and see goes line by line into a file that outlives them.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from tests.proxy import CuttingProxy

import millrace as mr
from millrace.errors import (
    BrokerStopped,
    Conflict,
    DataLost,
    LeaseLost,
    MillraceError,
    OffsetOutOfRange,
    Retriable,
    StorageError,
)
from millrace.faults import VARIABLE
from millrace.journal.broker import Broker
from millrace.transport.owner import owner_endpoint
from millrace.transport.owner.election import join_journals
from millrace.transport.owner.joined_broker import JoinedBroker
from millrace.transport.owner.owner_endpoint import JournalAddress, OwnerEndpoint

SCHEMA = pa.schema([("value", pa.int64()), ("pad", pa.binary())])
WRITTEN = ("w/0", "w/1", "w/2")
SOURCE, COPY, GROUP = "source", "copy", "copier"
STEPWISE = ("p/0", "p/1")
JOURNALS = (*WRITTEN, SOURCE, COPY, *STEPWISE)
_PAUSE_S = 0.02
_LIVES = 1000
_REQUESTS = 100_000
_ROWS = 1000
CONFIG = mr.Config(owner_lease="1500ms", owner_timeout="20s", gone_after="20s").with_options(
    owner_backoff_ms=20,
    owner_retries_max=10,
    owner_idle_ms=60,
    owner_ping_ms_max=2000,
    journal_inline_bytes_max=1500,
    kafka_inline_bytes_max=1500,
    journal_small_bytes_max=3000,
    journal_segment_bytes_target=20_000,
    journal_range_bytes_target=4000,
    journal_waiting_bytes_max=8000,
    journal_waiting_total_bytes_max=20_000,
    journal_move_out_bytes_min=500,
    journal_merge_ranges_min=3,
    ledger_snapshot_records=60,
    ledger_retry_ms=20,
    kafka_grant_ms_max=1500,
)
"""All sizes are small, so that all that happens to many rows happens to few."""


@dataclass(frozen=True)
class Scene:
    """Where a history takes place."""

    path: str
    """Of the workspace, a folder or a bucket."""
    ledger: str | None
    folder: str
    """Of the files that processes leave."""
    seed: int
    where: JournalAddress
    environment: Mapping[str, str] = field(default_factory=dict)
    broker: str = "embedded"
    cuts: tuple[int | None, ...] = ()
    """After how many bytes connections to owners are cut."""

    @property
    def stop(self) -> str:
        """When it is there, clients end."""
        return f"{self.folder}/stop"

    @property
    def stop_hosts(self) -> str:
        """The same for hosts, which clients need to the last."""
        return f"{self.folder}/stop-hosts"

    def fault_file(self, who: str) -> str:
        """What the process fails at is written there."""
        return f"{self.folder}/fault-{who}"


class Telling:
    """Adds whole lines to a file."""

    def __init__(self, scene: Scene, who: str) -> None:
        path = f"{scene.folder}/{who}.history"
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def __call__(self, event: str, **what: object) -> None:
        line = json.dumps({"event": event, **what}) + "\n"
        os.write(self._handle, line.encode())


def pad_of(value: int) -> bytes:
    """What a row has beside its number; a few rows are large."""
    return bytes([value % 251]) * (value % 97 if value % 11 else 700)


def rows_of(values: list[int]) -> pa.Table:
    return pa.table({"value": values, "pad": [pad_of(value) for value in values]}, SCHEMA)


def values_of(fetched: mr.Fetched) -> tuple[list[int], list[int]]:
    """Offsets and numbers of rows; -1 for a row that is not as it was written."""
    stored = fetched.stored()
    values = [
        value if pad == pad_of(value) else -1
        for value, pad in zip(stored["value"].to_pylist(), stored["pad"].to_pylist(), strict=True)
    ]
    return stored["_mr_offset"].to_pylist(), values


def begin(scene: Scene, who: str) -> None:
    """Set up a process; it fails where its file says, and what it says last is kept."""
    said = os.open(f"{scene.folder}/{who}.stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(said, 2)
    os.close(said)
    faulthandler.enable()
    os.environ.update(scene.environment)
    os.environ[VARIABLE] = f"@{scene.fault_file(who)}"


def joined(scene: Scene) -> JoinedBroker:
    """The journals, for a process that never owns them."""
    return join_journals(scene.where, CONFIG)


def until_there(file: str) -> Iterator[int]:
    for number in itertools.count():
        if os.path.exists(file):
            return
        yield number


# What the processes do.


def host(scene: Scene, who: str) -> None:
    """Own the journals whenever nobody else does."""
    begin(scene, who)
    if scene.cuts:
        _answer_behind_a_proxy(list(scene.cuts))
    for _ in until_there(scene.stop_hosts):
        try:
            ws = mr.open(scene.path, ledger=scene.ledger, broker=scene.broker, config=CONFIG)
        except Retriable:
            time.sleep(_PAUSE_S)  # Its server was killed just now.
        else:
            break
    else:
        return
    with ws:
        for _ in until_there(scene.stop_hosts):
            try:
                ws.journals.end_offset(SOURCE)
            except MillraceError:
                time.sleep(_PAUSE_S)
            time.sleep(_PAUSE_S)


def _answer_behind_a_proxy(cuts: list[int | None]) -> None:
    write = owner_endpoint.write
    proxies = []

    def write_address(store: Any, endpoint: OwnerEndpoint) -> None:  # noqa: ANN401 - passed on
        proxies.append(CuttingProxy(endpoint.address, cuts))
        write(store, replace(endpoint, address=proxies[-1].address))

    owner_endpoint.write = write_address


class Client:
    """One life of a process that writes rows nobody else writes."""

    def __init__(self, scene: Scene, who: str, number: int, life: int) -> None:
        begin(scene, who)
        self.scene, self.who, self.life = scene, who, life
        self.tell = Telling(scene, who)
        self.chance = random.Random(f"{scene.seed} {who} {life}")  # noqa: S311 - replayed
        self.journals = joined(scene)
        self._next = (number * _LIVES + life) * _REQUESTS

    def fresh(self, names: tuple[str, ...], rows_max: int) -> tuple[str, dict[str, list[int]]]:
        """A request that nobody has made, and its rows."""
        self._next += 1
        first = self._next * _ROWS
        rows: dict[str, list[int]] = {}
        for name in names:
            count = self.chance.randint(1, rows_max)
            rows[name] = list(range(first, first + count))
            first += count
        return f"{self.who}/{self.life}/{self._next}", rows

    def asked(self, request: str, rows: Mapping[str, list[int]], **more: object) -> None:
        self.tell("begin", request=request, rows=rows, at=time.monotonic(), **more)

    def attempt(self, request: str, ask: Callable[[], Mapping[str, int]]) -> bool:
        """Ask once, and write down what is known then; whether it is done."""
        try:
            first = ask()
        except (Conflict, LeaseLost) as error:
            self.tell("refused", request=request, why=str(error)[:200])
        except (Retriable, BrokerStopped, StorageError, DataLost) as error:
            self.tell("unknown", request=request, why=f"{type(error).__name__}: {error}"[:300])
        else:
            self.tell("acked", request=request, at=time.monotonic(), first=first)
            return True
        return False


def writer(scene: Scene, who: str, number: int, life: int) -> None:
    """Append to one journal, or to several at once; some of it may be asked again."""
    client = Client(scene, who, number, life)
    journals, chance = client.journals, client.chance
    mine, sequence = f"{who}/{life}", 0
    for _ in until_there(scene.stop):
        count = chance.choice((1, 1, 1, 2, 3))
        names = tuple(sorted(chance.sample((*WRITTEN, SOURCE), count)))
        request, rows = client.fresh(names, chance.choice((1, 3, 30)))
        client.asked(request, rows)
        named: dict[str, Any] = {}
        if chance.random() < 0.5:
            sequence += 1
            named = {"sequence": sequence}

        def ask(
            rows: Mapping[str, list[int]] = rows, named: Mapping[str, Any] = named
        ) -> Mapping[str, int]:
            given = {**named, "producer": journals.producer_id(mine)} if named else {}
            if len(rows) == 1:
                ((name, values),) = rows.items()
                keys = pa.array([b"k"] * len(values)) if values[0] % 7 == 0 else None
                done = journals.append(name, rows_of(values), keys=keys, **given)
                return {name: done.first_offset}
            with journals.transaction(**given) as t:
                for name, values in rows.items():
                    t.append(name, rows_of(values))
            assert t.result is not None
            return {name: done.first_offset for name, done in t.result.appended.items()}

        while not client.attempt(request, ask):
            time.sleep(_PAUSE_S)
            # Without a number it could be written twice.
            if not named or os.path.exists(scene.stop):
                break
        time.sleep(chance.random() * _PAUSE_S)


def producer(scene: Scene, who: str, number: int, life: int) -> None:
    """Write transactions that stay open over many calls; end those of the last life first."""
    client = Client(scene, who, number, life)
    chance = client.chance
    for _ in until_there(scene.stop):
        try:
            with client.journals.producer(who) as mine:
                for _ in until_there(scene.stop):
                    _produce(client, mine)
                    time.sleep(chance.random() * _PAUSE_S)
        except MillraceError as error:
            client.tell("told", why=f"{type(error).__name__}: {error}"[:300])
            time.sleep(_PAUSE_S)


def _produce(client: Client, mine: mr.Producer) -> None:
    chance = client.chance
    names = tuple(sorted(chance.sample(STEPWISE, chance.randint(1, 2))))
    # Often so few that a journal has one append: nothing else tells then that it has rows.
    request, rows = client.fresh(names, chance.choice((1, 3, 20)))
    client.asked(request, rows, stepwise=True)
    for name, values in rows.items():
        half = len(values) // 2
        for some in (values[:half], values[half:]):
            if some:
                mine.append(name, rows_of(some))
    if chance.random() < 0.2:
        mine.rollback()
        client.tell("refused", request=request)
    else:
        mine.commit()
        client.tell("acked", request=request, at=time.monotonic())


def copier(scene: Scene, who: str, number: int, life: int) -> None:
    """Copy a journal, each row once: rows and offset in one transaction. Truncate what was copied.

    Nothing is kept but the group's offset, so any life can go on from there.
    """
    client = Client(scene, who, number, life)
    journals = client.journals
    for turn in until_there(scene.stop):
        try:
            copy_some(journals, rows_max=client.chance.choice((1, 7, 100)))
            if turn % 7 == 6:
                journals.truncate_committed(SOURCE)
        except MillraceError as error:
            client.tell("told", why=f"{type(error).__name__}: {error}"[:300])
        time.sleep(client.chance.random() * _PAUSE_S)


def copy_some(journals: Broker, rows_max: int) -> bool:
    """Copy the next rows; whether there were any."""
    at = journals.committed(GROUP, SOURCE)
    fetched = journals.read(SOURCE, at or 0, rows_max=rows_max)
    if fetched.next_offset == (at or 0):
        return False
    with journals.transaction() as t:
        if fetched.num_rows:
            t.append(COPY, fetched.rows())
        t.commit(GROUP, SOURCE, fetched.next_offset, expected=at)
    return True


def reader(scene: Scene, who: str, number: int, life: int) -> None:
    """Read all journals from their first row to their last, and then what comes."""
    client = Client(scene, who, number, life)
    at: dict[str, int] = dict.fromkeys(JOURNALS, 0)
    for _ in until_there(scene.stop):
        for name in client.chance.sample(JOURNALS, len(JOURNALS)):
            try:
                at[name] = read_some(client.journals, client.tell, who, name, at[name])
            except OffsetOutOfRange:
                at[name] = _start(client, name, at[name])
            except MillraceError as error:
                client.tell("told", why=f"{type(error).__name__}: {error}"[:300])
        time.sleep(client.chance.random() * _PAUSE_S)


def _start(client: Client, name: str, at: int) -> int:
    try:
        return client.journals.start_offset(name)
    except MillraceError:
        return at


def read_some(journals: Broker, tell: Telling, who: str, name: str, at: int) -> int:
    """Read a journal from an offset on, and write down what is there; where to go on."""
    began = time.monotonic()
    fetched = journals.read(name, at)
    offsets, values = values_of(fetched)
    tell(
        "read",
        who=who,
        journal=name,
        at=began,
        until=time.monotonic(),
        offsets=offsets,
        values=values,
        next=fetched.next_offset,
        is_end=fetched.next_offset == fetched.end_offset,
        **{"from": at},
    )
    return fetched.next_offset
