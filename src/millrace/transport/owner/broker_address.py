"""The brokers that can keep a workspace's journals, by address: embedded, memory or Kafka.

A broker is loaded when it is opened: most processes join one, and many live for a second.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millrace.config import Config
from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.ledger_log.postgres_log import SCHEME, PostgresLog, shown_address
from millrace.names import shown
from millrace.storage import documents
from millrace.storage.documents import Document
from millrace.storage.local import LocalStore
from millrace.storage.store import Store
from millrace.storage.workspace_home import store_at
from millrace.transport.agent.agent_launch import own_host
from millrace.transport.flight.tls import own_certificate
from millrace.transport.owner.journal_owner import OwnedWorkspace, OwnerUpkeep
from millrace.transport.owner.owner_endpoint import READ_ONLY
from millrace.transport.owner.owner_life import LifeWatch

if TYPE_CHECKING:
    from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
    from millrace.journal.ledger_log.decision_log import DecisionLog
    from millrace.journal.ledger_log.loaded_log import LoadedLog
    from millrace.journal.ledger_log.log_broker import LogBroker

EMBEDDED: Final = "embedded"
ELSEWHERE: Final = "embedded://"
MEMORY: Final = "memory"
KAFKA: Final = "kafka://"
SQLITE: Final = "sqlite"
FILES: Final = "files"
FOLDER: Final = "journals"
HOME_FILE: Final = "journals.json"
NOTE_FILE: Final = "journals-of.json"
"""In a folder elsewhere: to which workspace its journals belong."""
_VERSION: Final = 1
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - recognised, not listened on


def check_broker(kind: str) -> str:
    """Refuse an address of no known broker."""
    if kind in (EMBEDDED, MEMORY) or kind.startswith(f"{ELSEWHERE}/"):
        return kind
    if kind.startswith(KAFKA) and len(kind) > len(KAFKA):
        return kind
    raise UserError(
        f"unknown broker {kind!r}\n"
        f"  to fix: give {EMBEDDED!r} (in the workspace's folder), '{ELSEWHERE}/folder' (on a "
        f"local disk of this host), {MEMORY!r} (kept nowhere) or '{KAFKA}host:port'"
    )


def is_embedded(kind: str) -> bool:
    """Whether a broker keeps its rows in a folder, wherever that is."""
    return kind == EMBEDDED or kind.startswith(ELSEWHERE)


def is_same(requested: str, served: str) -> bool:
    """Whether a served broker is the requested one; a client need not know the folder."""
    return requested == served or (requested == EMBEDDED and is_embedded(served))


def check_ledger(ledger: str | None, broker: str, *, is_bucket: bool) -> str | None:
    """Refuse a ledger that is none, or that the broker or the workspace cannot have."""
    known = ledger in (None, SQLITE, FILES) or (ledger or "").startswith(SCHEME)
    if not known:
        raise UserError(
            f"unknown ledger {shown(ledger)}\n  to fix: give {SQLITE!r} (on the owner's own disk), "
            f"{FILES!r} (in the workspace, for all hosts) or '{SCHEME}...'"
        )
    if ledger is not None and broker != EMBEDDED:
        raise UserError(
            f"broker {broker!r} has no ledger\n  found: ledger={shown(_without_password(ledger))}\n"
            f"  to fix: leave ledger= out, or use broker={EMBEDDED!r}"
        )
    if is_bucket and ledger == SQLITE:
        raise UserError(
            f"a bucket keeps no SQLite file\n  found: ledger={SQLITE!r}\n"
            f"  to fix: leave ledger= out, or give {FILES!r} or '{SCHEME}...'"
        )
    return ledger


def resolve_ledger(store: Store, broker: str, ledger: str | None) -> str:
    """The ledger of a workspace's journals: as recorded, else as asked for, else the default."""
    if broker != EMBEDDED:
        return SQLITE
    noted = recorded_ledger(store)
    if noted is None:
        return ledger or (FILES if store.remote else SQLITE)
    if ledger is not None and _without_password(ledger) != noted:
        raise UserError(
            f"the journals of {store.root} have the ledger {noted!r}\n"
            f"  found: ledger={_without_password(ledger)!r}\n  to fix: leave ledger= out"
        )
    return ledger or noted


def _without_password(ledger: str) -> str:
    return shown_address(ledger) if ledger.startswith(SCHEME) else ledger


def recorded_ledger(store: Store) -> str | None:
    """What the journals were first opened with; None if they never were."""
    data = store.read(HOME_FILE)
    if data is None:
        return None
    return documents.load(
        data,
        lambda document: document.text("ledger") if "ledger" in document.fields else SQLITE,
        where=store.path(HOME_FILE),
        what="the place of a workspace's journals",
        to_fix="restore it; without it the journals may lie elsewhere",
        version=_VERSION,
        workspace=store.workspace_id(),
    )


def decision_log(store: Store, workspace_id: str, ledger: str, config: Config) -> DecisionLog:
    """The log of a workspace's journals. Nothing is made or read yet."""
    if ledger == FILES:
        from millrace.journal.ledger_log.store_log import StoreLog  # noqa: PLC0415 - see above

        return StoreLog(store, FOLDER, config)
    return PostgresLog(ledger, workspace_id, config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Takeover:
    """See `LogTakeover`."""

    store: Store
    workspace_id: str
    ledger: str
    config: Config
    accept_loss: AcceptLoss

    def load(self) -> LoadedLog | None:
        """See `LogTakeover.load`."""
        from millrace.journal.ledger_log.loaded_log import LoadedLog  # noqa: PLC0415 - see above

        if not self._is_noted():
            return None
        if self.ledger != FILES:
            self.store.probe()
        return LoadedLog.ahead(self._log())

    def open(self, known_end: int, epoch_seen: int | None, ahead: LoadedLog | None) -> LogBroker:
        """See `LogTakeover.open`."""
        from millrace.journal.ledger_log.log_broker import LogBroker  # noqa: PLC0415 - see above

        if ahead is None:
            self._prepare()
        return LogBroker.open_log(
            self.store,
            FOLDER,
            self._log() if ahead is None else ahead.log,
            self.config,
            accept_loss=self.accept_loss,
            known_end=known_end,
            epoch_seen=epoch_seen,
            ahead=ahead,
        )

    def _prepare(self) -> None:
        """See that the place of the log is the workspace's, and is known as that."""
        store, ledger = self.store, self.ledger
        if isinstance(store, LocalStore):
            store.path(FOLDER)  # A link that leads elsewhere is refused.
        is_noted = self._is_noted()
        if not is_noted or ledger != FILES:
            store.probe()  # Otherwise the log does, while it is read.
        if not is_noted and not record_home(store, self.workspace_id, EMBEDDED, ledger):
            resolve_ledger(store, EMBEDDED, ledger)  # Another process was first.

    def _is_noted(self) -> bool:
        return recorded_ledger(self.store) == _without_password(self.ledger)

    def _log(self) -> DecisionLog:
        return decision_log(self.store, self.workspace_id, self.ledger, self.config)


def opener(
    kind: str, path: str, config: Config, *, accept_loss: AcceptLoss = False
) -> Callable[[], Broker]:
    """How to open the broker of a workspace."""
    folder = os.path.join(path, FOLDER)
    if check_broker(kind).startswith(ELSEWHERE):
        folder = kind.removeprefix(ELSEWHERE)
    if is_embedded(kind):
        return lambda: _open_embedded(LocalStore(path), kind, folder, config, accept_loss)
    if kind == MEMORY:
        return lambda: _open_memory(config)

    def open_kafka() -> Broker:
        try:
            kafka = importlib.import_module("millrace.journal.kafka.kafka_broker")
        except ImportError as error:
            raise UserError(
                f"broker {kind!r} needs a Kafka client: {error}\n"
                "  to fix: install confluent-kafka, or use another broker"
            ) from error
        broker: Broker = kafka.KafkaBroker.open(kind, folder, config)
        return broker

    return open_kafka


def _open_memory(config: Config) -> Broker:
    from millrace.journal.memory import MemoryBroker  # noqa: PLC0415 - see above

    return MemoryBroker(config)


def recorded(store: Store) -> str | None:
    """What kept the journals of a workspace when they were last opened, if that is known."""
    data = store.read(HOME_FILE)
    if data is None:
        return None
    return documents.load(
        data,
        _known_kind,
        where=store.path(HOME_FILE),
        what="the place of a workspace's journals",
        to_fix="restore it; without it the journals may lie elsewhere",
        version=_VERSION,
        workspace=store.workspace_id(),
    )


def record_home(
    store: Store, workspace_id: str | None, kind: str, ledger: str | None = None
) -> bool:
    """Record where the journals of a workspace are, unless that is known; whether it was not."""
    fields = {documents.WORKSPACE: workspace_id, "broker": kind}
    if ledger not in (None, SQLITE):
        fields["ledger"] = _without_password(ledger)
    return store.create(HOME_FILE, documents.seal({"version": _VERSION, **fields}))


def _known_kind(document: Document) -> str:
    broker = document.text("broker")
    try:
        return check_broker(broker)
    except UserError as error:
        raise ValueError(f"broker is {shown(broker)}") from error


def _open_embedded(
    store: LocalStore, kind: str, folder: str, config: Config, accept_loss: AcceptLoss
) -> Broker:
    """Open the one folder of a workspace's journals; a second is never begun."""
    from millrace.journal.embedded.embedded_broker import EmbeddedBroker  # noqa: PLC0415 - see above
    from millrace.journal.embedded.segment_reader import LEDGER  # noqa: PLC0415 - see above

    home = recorded(store)
    gone = kind != EMBEDDED and not os.path.exists(os.path.join(folder, LEDGER))
    if home is not None and (home != kind or gone):
        there = f"the journals of {store.root} lie in {home}"
        raise UserError(
            f"{there}, not in {kind}\n  to fix: open it with broker={home!r}"
            if home != kind
            else f"{there}, and they are not there\n"
            "  to fix: open it on the host whose disk that is, or bring them back"
        )
    if kind == EMBEDDED:
        store.path(FOLDER)  # A link that leads elsewhere is refused.
    else:
        _refuse_others(store, folder)
    broker = EmbeddedBroker.open(folder, config, accept_loss=accept_loss)
    try:
        if kind != EMBEDDED:
            _note_workspace(store, folder)
        if home is None:
            record_home(store, store.workspace_id(), kind)
    except BaseException:
        broker.close()
        raise
    return broker


def _refuse_others(store: LocalStore, folder: str) -> None:
    """Refuse a folder that holds the journals of another workspace."""
    workspace_id, there = store.workspace_id(), LocalStore(folder)
    above = LocalStore(os.path.dirname(there.root))
    data = there.read(NOTE_FILE)
    noted = None if data is None else _noted(data, there.path(NOTE_FILE))
    inside = above.workspace_id() if above.root != store.root else None
    for owner in (noted, inside):
        if owner is not None and owner != workspace_id:
            raise UserError(
                f"{folder} does not hold the journals of {store.root}\n"
                f"  found: those of workspace {owner}, this is {workspace_id}\n"
                "  to fix: name the folder of this workspace's journals"
            )


def _note_workspace(store: LocalStore, folder: str) -> None:
    """Leave a note in a folder elsewhere, which says whose journals it holds."""
    fields = {"version": _VERSION, documents.WORKSPACE: store.workspace_id()}
    LocalStore(folder).create(NOTE_FILE, documents.seal(fields))


def _noted(data: bytes, where: str) -> str:
    return documents.load(
        data,
        lambda document: document.text(documents.WORKSPACE),
        where=where,
        what="a note of whose journals these are",
        to_fix="restore it, or remove it if you know that they are this workspace's",
        version=_VERSION,
    )


def owned_workspace(
    path: str,
    *,
    workspace_id: str,
    token: str,
    kind: str,
    config: Config,
    loopback: bool = True,
    host: str | None = None,
    port: int = 0,
    joins_only: bool = False,
    accept_loss: AcceptLoss = False,
    ledger: str | None = None,
    upkeep: OwnerUpkeep | None = None,
) -> OwnedWorkspace:
    """A workspace whose journals are to be owned.

    `host` is listened on; by default this host's own address, or loopback. Clients get
    one address of this host, also if the owner listens on all of them. `accept_loss` says what
    to do if commits are missing.
    """
    public_host = host if host and host not in _EVERYWHERE else None
    store = store_at(path, config)
    resolved = resolve_ledger(store, kind, ledger)
    is_log = resolved != SQLITE
    return OwnedWorkspace(
        path=path,
        workspace_id=workspace_id,
        token=token,
        kind=check_broker(kind),
        open_broker=opener(kind, path, config, accept_loss=accept_loss),
        config=config,
        takes=lambda served: is_same(
            kind, served.removesuffix(READ_ONLY) if accept_loss == "read_only" else served
        ),
        host=public_host or own_host(os.environ, loopback=loopback and host is None),
        listen=host,
        port=port,
        certificate=own_certificate(os.environ),
        joins_only=joins_only,
        takeover=_Takeover(
            store=store,
            workspace_id=workspace_id,
            ledger=resolved,
            config=config,
            accept_loss=accept_loss,
        )
        if is_log
        else None,
        watch=LifeWatch(config),
        upkeep=upkeep,
    )


def reachable(address: str, *, loopback: bool) -> str:
    """An owner's address, unless it is of no use where tasks run on other hosts."""
    host = address.partition("://")[2].rpartition(":")[0]
    if not loopback and (host.startswith("127.") or host in ("localhost", "[::1]")):
        raise UserError(
            f"the owner of the journals answers at {address}, and tasks run on other hosts\n"
            "  to fix: end it and open the workspace with this Spark first, or run `millrace serve`"
            " with --host"
        )
    return address
