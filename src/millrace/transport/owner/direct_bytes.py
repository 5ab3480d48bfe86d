"""Rows of a joined process on their way to the workspace, past the owner of the journals.

Invariant: a publish is sent a second time, with its rows in it, only if the owner refused the first
one, so that nothing of it was saved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from millrace.errors import FileRefused, JournalUnknown, SchemaMismatch, StorageError
from millrace.journal.core.row_format import check_stamped
from millrace.journal.core.values import Appended, JournalInfo, Lease, Publish, Published, Rows
from millrace.journal.direct_writes import DirectWriter, direct_size
from millrace.transport.owner.broker_calls import CALLS
from millrace.transport.owner.owner_calls import OwnerCaller

if TYPE_CHECKING:
    from millrace.journal.broker import Broker

Answer = TypeVar("Answer")
_INFOS_MAX: Final = 4096


class DirectBytes:
    """Writes rows of large publishes into the workspace. May be used by many threads."""

    def __init__(self, caller: OwnerCaller, broker: Broker) -> None:
        self._caller, self._broker = caller, broker
        self._infos: dict[str, JournalInfo] = {}
        self._writers: dict[tuple[str, str], DirectWriter] = {}
        self._lock = threading.Lock()

    def publish(self, request: Publish) -> Published | None:
        """Publish references to rows that are written here; None if the rows are to be sent."""
        writer = self._writer(direct_size(request))
        if writer is None:
            return None

        def publish() -> Published:
            infos = {part.journal: self._info(part.journal) for part in request.parts}
            with writer.write(request, infos) as referring:
                published: Published = self._caller.call(CALLS["publish"], {"request": referring})
                return published

        return self._unless_refused(publish)

    def append_stamped(self, name: str, rows: Rows, lease: Lease | None) -> Appended | None:
        """The same for stamped rows of one producer."""
        writer = self._writer(rows.nbytes)
        if writer is None:
            return None

        def append() -> Appended | None:
            info = self._info(name)
            stamped = check_stamped(rows, info.schema, where=name)
            referring = writer.write_stamped(stamped, info)
            if referring is None:
                return None
            with referring as file:
                given = {"name": name, "rows": file, "lease": lease}
                appended: Appended = self._caller.call(CALLS["adopt_stamped"], given)
                return appended

        return self._unless_refused(append)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            writers, self._writers = list(self._writers.values()), {}
        for writer in writers:
            writer.close()

    def _unless_refused(self, work: Callable[[], Answer | None]) -> Answer | None:
        """None if nothing was published: the owner is sent the rows then, and says what is wrong."""
        try:
            return work()
        except (FileRefused, JournalUnknown, SchemaMismatch, StorageError):
            self._infos.clear()
            return None

    def _writer(self, size: int) -> DirectWriter | None:
        """What writes rows of this size; None if they are to be sent."""
        config = self._caller.config
        if not config.journal_inline_bytes_max < size <= config.journal_append_bytes_max:
            return None
        place = self._caller.direct_place()
        if place is None:
            return None
        key = (place.store.root, place.folder)
        with self._lock:
            if key not in self._writers:
                self._writers[key] = DirectWriter(place.store, place.folder, self._caller.config)
            return self._writers[key]

    def _info(self, name: str) -> JournalInfo:
        info = self._infos.get(name)
        if info is None:
            if len(self._infos) >= _INFOS_MAX:
                self._infos.clear()
            info = self._infos[name] = self._broker.get(name)
        return info
