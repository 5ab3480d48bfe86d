"""Rows of a joined process on their way to the workspace, past the owner of the journals.

Invariant: a publish is sent a second time, with its rows in it, only if the owner refused the first
one, so that nothing of it was saved.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from millrace.errors import FormatError, JournalUnknown, SchemaMismatch, StorageError
from millrace.journal.core.call_numbers import CallNumber
from millrace.journal.core.read_request import ReadRequest
from millrace.journal.core.row_bundles import ManyRows, many_rows
from millrace.journal.core.row_format import check_stamped, one_run
from millrace.journal.core.values import (
    Append,
    Appended,
    Fetched,
    JournalInfo,
    KafkaPlace,
    Lease,
    Publish,
    Published,
    Rows,
    SegmentFile,
)
from millrace.journal.core.write_grants import GrantRequest, StampedRun
from millrace.journal.direct_reads import AheadOfSpots, DirectReader, SpotUnreadable
from millrace.journal.direct_writes import DirectWriter, direct_size
from millrace.journal.embedded.ledger.ledger_port import STAMP_BYTES
from millrace.journal.embedded.mounts import network_kind
from millrace.journal.kafka.kafka_messages import HeldRows
from millrace.journal.kept_ranges import KeptRanges
from millrace.journal.row_files import ADOPTED
from millrace.transport.owner.broker_calls import CALLS
from millrace.transport.owner.kafka_access import KafkaAccess, KafkaClients
from millrace.transport.owner.owner_calls import OwnerCaller
from millrace.transport.owner.owner_links import DirectPlace

if TYPE_CHECKING:
    from millrace.journal.broker import Broker

Answer = TypeVar("Answer")
_INFOS_MAX: Final = 4096
_SENDS_S: Final = 30.0
"""For so long rows are sent to the owner after a write has failed here."""
_log: Final = logging.getLogger(__name__)


class DirectBytes:
    """Writes rows of large publishes into the workspace. May be used by many threads."""

    def __init__(self, caller: OwnerCaller, broker: Broker) -> None:
        self._caller, self._broker = caller, broker
        self._infos: dict[str, JournalInfo] = {}
        self._writers: dict[tuple[str, str], DirectWriter] = {}
        self._kept = KeptRanges[bytes](caller.config.journal_reader_kept_bytes_max)
        self._sends_until = 0.0
        """Until then rows are sent: this process could not write."""
        self._ahead: dict[tuple[str, str], AheadOfSpots | None] = {}
        """By the place where files are; None for a disk of this host, which answers at once."""
        self._kafka = KafkaAccess(caller.config, broker)

    def publish(self, request: Publish) -> Published | None:
        """Publish references to rows that are written here; None if the rows are to be sent."""
        size, count = direct_size(request)
        if not self._is_direct(size):
            return None
        clients = self._kafka_clients(size)
        if clients is not None:
            return self._unless_refused(lambda: self._publish_to_kafka(clients, request))
        writer = self._writer(size, count)
        if writer is None:
            return None

        def publish() -> Published:
            infos = {part.journal: self._info(part.journal) for part in request.parts}
            with writer.write(request, infos) as referring:
                published: Published = self._caller.call(CALLS["publish"], {"request": referring})
                return published

        return self._unless_refused(publish)

    def append_stamped(
        self, name: str, rows: Rows, lease: Lease | None, call: CallNumber | None
    ) -> Appended | None:
        """The same for stamped rows of one producer."""
        if not self._is_direct(rows.nbytes):
            return None
        clients = self._kafka_clients(rows.nbytes)
        if clients is not None:
            return self._unless_refused(
                lambda: self._append_to_kafka(clients, name, rows, lease, call)
            )
        writer = self._writer(rows.nbytes, rows.num_rows)
        if writer is None:
            return None

        def append() -> Appended | None:
            info = self._info(name)
            stamped = check_stamped(rows, info.schema, where=name)
            referring = writer.write_stamped(stamped, info)
            if referring is None:
                return None
            with referring as file:
                given = {"name": name, "rows": file, "lease": lease, "call": call}
                appended: Appended = self._caller.call(CALLS["adopt_stamped"], given)
                return appended

        return self._unless_refused(append)

    def _kafka_clients(self, size: int) -> KafkaClients | None:
        """What writes so many bytes of rows to Kafka; None if they are to be sent."""
        if size <= self._caller.config.kafka_inline_bytes_max:
            return None
        place = self._caller.direct_place()
        return self._kafka.at(place) if isinstance(place, KafkaPlace) else None

    def _publish_to_kafka(self, clients: KafkaClients, request: Publish) -> Published | None:
        parts = [part for part in request.parts if isinstance(part, Append)]
        if len(parts) < len(request.parts):
            return None  # The owner adopts files.
        infos = [self._info(part.journal) for part in parts]
        config = self._caller.config
        held = [HeldRows.of(*each, config) for each in zip(parts, infos, strict=True)]
        wanted = GrantRequest(
            parts=tuple(
                rows.announced(number, infos[number], parts[number].expected)
                for number, rows in enumerate(held)
            ),
            commits=request.commits,
            lease=request.lease,
            producer=request.producer,
            sequence=request.sequence,
        )
        made = self._kafka.make(clients, wanted, held)
        return None if made is None else made.published

    def _append_to_kafka(
        self,
        clients: KafkaClients,
        name: str,
        rows: Rows,
        lease: Lease | None,
        call: CallNumber | None,
    ) -> Appended | None:
        info = self._info(name)
        stamped = check_stamped(rows, info.schema, where=name)
        run = one_run(stamped)
        if run is None:
            return None
        held = HeldRows.of_stamped(stamped, info, self._caller.config)
        wanted = GrantRequest(
            parts=(held.announced(0, info, None),),
            lease=lease,
            stamped=StampedRun(producer=run[0], first_clock=run[1], flag=run[2]),
            call=call,
        )
        made = self._kafka.make(clients, wanted, [held])
        return None if made is None else made.appended

    def upload(self, path: str, file: SegmentFile) -> SegmentFile | None:
        """Put a whole file into the workspace's bucket; None if the owner is to get it."""
        place = self._caller.direct_place()
        if not isinstance(place, DirectPlace) or not place.store.remote:
            return None
        folder, name = os.path.split(path)
        put_at_ms = place.store.now_ms()
        try:
            place.store.keep(folder, f"{place.folder}/{ADOPTED}", [name], sync=True)
        except StorageError:
            return None
        return replace(file, path=f"{ADOPTED}/{name}", put_at_ms=put_at_ms)

    def read(self, request: ReadRequest) -> Fetched | None:
        """Read a journal, what is in files by this process; None if the owner is to read."""
        ((name, at),) = request.offsets.items()
        while True:
            fetched = self._read(replace(request, offsets={name: at}))
            if fetched is None or name not in fetched:
                return None
            rows = fetched[name]
            if rows.batches or rows.next_offset in (at, rows.end_offset):
                return rows
            at = rows.next_offset  # None of these was committed.

    def read_many(self, request: ReadRequest) -> ManyRows | None:
        """The same of many journals."""
        rows_of_many = self._read(request)
        if rows_of_many is None or not (request.is_single or rows_of_many.mixed):
            return rows_of_many
        fetched = dict(rows_of_many)
        single = replace(request, bytes_each_max=None, missing="raise")
        for name, rows in list(fetched.items()):
            if rows.problem is None and rows.next_offset == request.offsets[name]:
                del fetched[name]
            elif rows.problem is None and not rows.batches and rows.next_offset < rows.end_offset:
                further = self.read(replace(single, offsets={name: rows.next_offset}))
                if further is None:
                    return None
                fetched[name] = further
        return many_rows(fetched.values())

    def _read(self, request: ReadRequest) -> ManyRows | None:
        fetch = self._fetcher(request)
        if fetch is None:
            return None
        try:
            return fetch(self._locate(request))
        except SpotUnreadable as error:
            # Truncated or merged meanwhile, or lost: the owner knows which.
            _log.debug("the owner is asked to read: %s", error)
            return None

    def _fetcher(self, request: ReadRequest) -> Callable[[ManyRows], ManyRows] | None:
        """What fetches rows that the owner located; None if it is to read."""
        place = self._caller.direct_place()
        if isinstance(place, KafkaPlace):
            clients = self._kafka.at(place)
            limits = request.limits(self._caller.config)
            return None if clients is None else partial(self._kafka.read, clients, limits=limits)
        if place is None:
            return None
        ahead = self._ahead_at(place)
        reader = DirectReader(place.store, place.folder, self._kept, ahead)
        if ahead is None:
            return reader.fetch

        def fetch(rows: ManyRows) -> ManyRows:
            ahead.has_read(request, rows)
            return reader.fetch(rows)

        return fetch

    def _locate(self, request: ReadRequest) -> ManyRows:
        rows: ManyRows = self._caller.call(CALLS["locate"], {"request": request})
        return rows

    def _ahead_at(self, place: DirectPlace) -> AheadOfSpots | None:
        key = (place.store.root, place.folder)
        if key not in self._ahead:
            store, made = place.store, None
            if store.remote or network_kind(store.path(place.folder)) is not None:
                made = AheadOfSpots(store, place.folder, self._caller.config, self._locate)
            self._ahead.setdefault(key, made)
        return self._ahead[key]

    def close(self) -> None:
        """Close the files."""
        self._kept.clear()
        for ahead in self._ahead.values():
            if ahead is not None:
                ahead.pieces.close()
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()
        self._kafka.close()

    def _unless_refused(self, work: Callable[[], Answer | None]) -> Answer | None:
        """None if nothing was published: the owner gets the rows then, and says what is wrong."""
        try:
            return work()
        except (FormatError, JournalUnknown, SchemaMismatch):
            self._infos.clear()
        except SpotUnreadable as error:
            _log.info("rows are sent to the owner: %s", error)
        except StorageError as error:
            _log.info("rows are sent to the owner for a while: %s", error)
            self._sends_until = time.monotonic() + _SENDS_S
        return None

    def _is_direct(self, size: int) -> bool:
        """Whether so many bytes of rows are written by this process."""
        config = self._caller.config
        is_fit = config.journal_inline_bytes_max < size <= config.journal_append_bytes_max
        return is_fit and time.monotonic() >= self._sends_until

    def _writer(self, size: int, rows: int) -> DirectWriter | None:
        """What writes so many bytes of rows; None if they are to be sent."""
        config = self._caller.config
        place = self._caller.direct_place()
        if not isinstance(place, DirectPlace):
            return None
        stored = size + STAMP_BYTES * rows
        if place.store.remote and stored < config.journal_small_bytes_max:
            # Rows that fit into a record of the log are one put; in an object they are three calls.
            return None
        key = (place.store.root, place.folder)
        made = self._writers.get(key)
        if made is None:
            made = DirectWriter(place.store, place.folder, config)
            made = self._writers.setdefault(key, made)
        return made

    def _info(self, name: str) -> JournalInfo:
        info = self._infos.get(name)
        if info is None:
            if len(self._infos) >= _INFOS_MAX:
                self._infos.clear()
            info = self._infos[name] = self._broker.get(name)
        return info
