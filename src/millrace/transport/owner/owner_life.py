"""Signs of life of an owner that any host may replace, and their watchers.

The owner writes a file anew, several times in each lease. A watcher takes the owner for gone when
the file did not change for a whole lease by the watcher's own steady clock. Clocks of hosts are
never compared.

Invariant: a wrong judgement costs a takeover and no row: the log of decisions is the fence.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import BrokerStopped, MillraceError
from millrace.journal.broker import Broker
from millrace.message_types import known
from millrace.storage.store import Store
from millrace.wakeup import WakeUp, WorkerThread

if TYPE_CHECKING:
    from millrace.journal.ledger_log.loaded_log import LoadedLog
    from millrace.journal.ledger_log.log_broker import LogBroker

SIGN_FILE: Final = "owner.alive"
SIGNS_PER_LEASE: Final = 4
OpenLog = Callable[[int, int | None], "LogBroker"]
"""Opens a log, given a record that was in it, and the epoch of the owner that may be replaced."""
_log: Final = logging.getLogger(__name__)


class LogTakeover(Protocol):
    """How a log is taken over: loaded while its owner is silent, then opened."""

    def load(self) -> LoadedLog | None:
        """Load the log; None if there is none yet."""

    def open(self, known_end: int, epoch_seen: int | None, ahead: LoadedLog | None) -> LogBroker:
        """See `OpenLog`; `ahead` is what `load` gave."""


def steady_s() -> float:
    """Seconds that also count while this host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class OwnerSign(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life."""

    instance: str
    epoch: int
    beat: int
    number: int
    """The last record of the log when it was written."""
    is_ended: bool = False
    """Whether the owner has given the journals up."""


def write_sign(store: Store, sign: OwnerSign) -> None:
    """Write a sign of life, over the last one."""
    store.replace(SIGN_FILE, msgspec.json.encode(sign))


def read_sign(store: Store) -> OwnerSign | None:
    """The last sign of life; None if there is none, or none that can be read."""
    data = store.read(SIGN_FILE)
    try:
        return None if data is None else msgspec.json.decode(data, type=known(OwnerSign))
    except msgspec.DecodeError:
        return None


@dataclass(slots=True)
class LifeWatch:
    """Remembers since when the sign of an owner has not changed."""

    config: Config
    now: Callable[[], float] = steady_s
    _seen: tuple[str, int, int] | None = None
    _since: float = field(default=0.0)
    _epoch: int = 0
    """The highest epoch that was found in the log."""

    def is_over(self, sign: OwnerSign | None) -> bool:
        """Whether the owner that left this sign may be replaced."""
        if sign is None or (sign.is_ended and sign.epoch >= self._epoch):
            return True
        seen = (sign.instance, sign.beat, self._epoch)
        if seen != self._seen:
            self._seen, self._since = seen, self.now()
            return False
        return self.now() - self._since >= lease_s(self.config)

    def is_silent(self) -> bool:
        """Whether the sign that was last judged has missed its time; its owner may be gone."""
        return self._seen is not None and self.now() - self._since >= lease_s(self.config) / 2

    def open(self, sign: OwnerSign | None, open_log: OpenLog) -> LogBroker:
        """Open the log of an owner whose life is over.

        `AlreadyOwned` if the log has a newer owner than the one that left the sign. This one may
        have died before its first sign, or an older one's sign came late and hides its own: it is
        watched for a lease of its own.
        """
        from millrace.journal.ledger_log.log_ledger import NewerOwner  # noqa: PLC0415 - few own one

        if sign is None:
            return open_log(0, None)
        try:
            return open_log(sign.number, max(sign.epoch, self._epoch))
        except NewerOwner as error:
            self._epoch = error.epoch
            raise


def lease_s(config: Config) -> float:
    """How long an owner may be silent."""
    return ms(config.owner_lease) / 1000


class OwnerLife:
    """Gives the signs of an owner, and says whether it may still answer."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        instance: str,
        config: Config,
        stop: WakeUp,
        restore_address: Callable[[], None] = lambda: None,
    ) -> None:
        from millrace.journal.ledger_log.log_broker import LogBroker  # noqa: PLC0415 - few own one

        assert isinstance(broker, LogBroker)
        self._store = store
        self._broker = broker
        self._instance = instance
        self._lease_s = lease_s(config)
        self._stop = stop
        self._restore_address = restore_address
        self._beat = 0
        self._until = 0.0
        """Up to here no other process can have taken over."""
        self._thread = WorkerThread(self._live, "millrace-owner-life")

    def start(self) -> None:
        """Give signs from now on."""
        self._thread.start()

    def give_sign(self) -> None:
        """Look whether the journals are still this owner's, and say so."""
        began = steady_s()
        self._broker.check_owner()
        self._beat += 1
        write_sign(self._store, self._sign())
        self._until = began + self._lease_s

    def check(self) -> None:
        """Raise `OwnerReplaced` if another process owns the journals by now.

        Within the lease none does. After it, as when this process was suspended, the log tells.
        """
        if steady_s() >= self._until:
            self._broker.check_owner()

    def end(self) -> None:
        """Say that the journals are given up; not in the place of a newer owner."""
        with contextlib.suppress(MillraceError):
            last = read_sign(self._store)
            if last is None or last.instance == self._instance:
                write_sign(self._store, msgspec.structs.replace(self._sign(), is_ended=True))

    def _sign(self) -> OwnerSign:
        return OwnerSign(
            instance=self._instance,
            epoch=self._broker.epoch,
            beat=self._beat,
            number=self._broker.last_number,
        )

    def _live(self) -> None:
        while self._stop.sleep(self._lease_s / SIGNS_PER_LEASE):
            try:
                self.give_sign()
                if not self._stop.is_stopped:
                    self._restore_address()
            except BrokerStopped:
                self._stop.stop()
            except MillraceError as error:
                # Others take over if this lasts; until then it may pass.
                _log.warning("no sign of life could be given: %s", error)
