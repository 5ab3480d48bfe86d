"""Producers whose transactions stay open over many calls, in any journals.

Rows of an open transaction are CONTINUE rows. To commit, an ACK is written in each of its journals,
one journal after the other: all carry one clock, at or above that of every row, and each names the
other journals, by which readers put the transaction together again. What is about to be committed
is stored first, so a crash between two ACKs is made good by who opens the producer next.

Invariant: a transaction that was prepared is committed in all of its journals or, told so before
anything else, rolled back in all of them; one that was not prepared is rolled back. Clocks rise
over all journals and over restarts, whatever the time does.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa

from millrace.config import Config
from millrace.errors import JournalUnknown, LeaseLost, MillraceError, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core import row_format
from millrace.journal.core.clocks import BEFORE_ALL, Clock, next_clock
from millrace.journal.core.intents import Intents
from millrace.journal.core.journal_names import check_name
from millrace.journal.core.row_format import PRODUCER_MAX, Flag, ProducerId
from millrace.journal.core.values import Append, Appended, JournalInfo, Lease, OpenIn, Publish

FOLDER: Final = "millrace/producers"
"""Where the intents of named producers are kept: a journal for each."""
DOCUMENT: Final = "doc"
_RECORD: Final = pa.schema([("clock", pa.uint64()), ("intents", pa.string())])
_RECORDS_KEPT: Final = 64
Rows: TypeAlias = "pa.RecordBatch | pa.Table"
Documents = Sequence[Mapping[str, Any] | str]


def random_producer() -> ProducerId:
    """A producer id that nobody else will draw."""
    return ProducerId(secrets.randbelow(PRODUCER_MAX) + 1)


def json_schema() -> pa.Schema:
    """The schema of a journal of JSON documents: one text each, in column `doc`.

    Example:
        >>> from millrace.journal.producer import json_schema
        >>> json_schema().names
        ['doc']
    """
    return pa.schema([pa.field(DOCUMENT, pa.string(), nullable=False)])


class Producer:
    """Writes rows in transactions of its own. May be used by many threads, one call at a time.

    Example:
        >>> with ws.journals.producer("shop") as shop:
        ...     done = shop.append("orders", rows)
        ...     done = shop.append("payments", rows)
        ...     intents = shop.commit()  # both journals or neither
    """

    def __init__(
        self,
        broker: Broker,
        name: str | None = None,
        *,
        intents: Intents | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        journals_max: int = Config().journal_transaction_journals_max,
    ) -> None:
        """Use `Broker.producer`."""
        self._journals_max = journals_max
        self._broker = broker
        self._name = name
        self._now_ns = now_ns
        self._calls = threading.RLock()
        self._lease: Lease | None = None
        self._known: dict[str, JournalInfo] = {}
        self._open: dict[str, JournalInfo] = {}
        """The journals that the transaction has rows in, or may have."""
        self._intents: Intents | None = None
        """Of the transaction that was prepared, and is not ended yet."""
        self._is_kept = self._is_stored = self._is_committing = False
        self._doubt: str | None = None
        """Why rows of the open transaction may or may not be there."""
        if name is None:
            self.id = random_producer()
            self._clock = BEFORE_ALL
            if intents is not None:
                self.recover(intents)
        else:
            check_name(name)
            # The same holder gets a new epoch, which fences its older self.
            self._lease = broker.acquire(f"{FOLDER}/{name}", name)
            fault("producer.open.after_lease")
            self.id = broker.producer_id(name)
            self._recorder = broker.producer_id(f"{FOLDER}/{name}")
            self._finish(intents)

    @property
    def name(self) -> str | None:
        """The name under which it continues after a restart, if it has one.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     shop.name
            'shop'
        """
        return self._name

    # Writing.
    def append(
        self,
        journal: str,
        rows: Rows | None = None,
        *,
        documents: Documents | None = None,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
    ) -> Appended:
        """Add rows to the open transaction, which begins with its first ones.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     done = shop.append("payments", rows)
            ...     ws.journals.read("payments", 0).num_rows  # not committed yet
            0
        """
        with self._calls:
            if self._intents is not None:
                raise self._not_now("is prepared", "commit it or roll it back first")
            if self._doubt is not None:
                raise self._not_now(f"may lack rows: {self._doubt}", "roll it back")
            check_journal_count(len({*self._open, journal}), self._journals_max)
            info = self._info(journal)
            given = _given(rows, documents)
            return self._write(info, given, Flag.CONTINUE, keys, timestamps)

    def append_now(
        self,
        journal: str,
        rows: Rows | None = None,
        *,
        documents: Documents | None = None,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
    ) -> Appended:
        """Append rows that commit themselves, beside the open transaction if there is one.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     done = shop.append_now("payments", rows)
            >>> ws.journals.read("payments", 0).num_rows
            3
        """
        with self._calls:
            if journal in self._open:
                fix = "commit or roll back first, or append them to it"
                raise self._not_now(f"has rows in journal {journal!r}", fix)
            info = self._info(journal)
            return self._write(info, _given(rows, documents), Flag.OUTSIDE, keys, timestamps)

    # Ending a transaction.
    def prepare(self, *, keep: bool = True) -> Intents:
        """Decide to commit: from here on the transaction survives a crash.

        A named producer stores the intents before it returns, and whoever opens it next writes the
        ACKs that are missing. With `keep=False`, and for a producer without a name, the caller
        stores them, and gives them to `Broker.producer(name, intents=...)` or `recover`.

        Example:
            >>> shop = ws.journals.producer("shop")
            >>> done = shop.append("payments", rows)
            >>> intents = shop.prepare()  # if this process dies now, the next one commits
            >>> ws.journals.producer("shop").close()
            >>> ws.journals.read("payments", 0).num_rows
            3
        """
        with self._calls:
            if self._doubt is not None:
                raise self._not_now(f"may lack rows: {self._doubt}", "roll it back")
            if self._intents is None:
                self._intents = Intents(
                    producer=self.id,
                    clock=self._draw(1),
                    journals={name: info.id for name, info in self._open.items()},
                )
                self._is_kept = keep and self._name is not None and bool(self._open)
            if self._is_kept and not self._is_stored:
                fault("producer.prepare.before_store")
                self._record(self._intents.clock, self._intents.to_json())
                self._is_stored = True
                fault("producer.prepare.after_store")
            return self._intents

    def commit(self) -> Intents:
        """Commit the open transaction: prepare it, if that was not done, and write its ACKs.

        If that fails on the way it can be asked again.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     done = shop.append("payments", rows)
            ...     list(shop.commit().journals)
            ['payments']
        """
        with self._calls:
            intents = self.prepare()
            self._is_committing = bool(intents.journals)
            for place, name in enumerate(intents.journals):
                fault("producer.commit.before_ack", place)
                self._ack(self._open[name], intents)
                fault("producer.commit.after_ack", place)
            self._end()
            return intents

    def rollback(self) -> None:
        """Drop the rows of the open transaction, also of one that was prepared.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     done = shop.append("payments", rows)
            ...     shop.rollback()
            >>> ws.journals.read("payments", 0).num_rows
            0
        """
        with self._calls:
            if self._is_committing:
                raise self._not_now("may be committed in some journals", "commit it again")
            if self._intents is not None and self._is_kept:
                fault("producer.rollback.before_store")
                self._record(self._draw(1), None)
                fault("producer.rollback.after_store")
            mine = {info.id for info in self._open.values()}
            standing = self._broker.standing(self.id) if mine else None
            for place, each in enumerate(standing.open if standing else ()):
                if each.id in mine:
                    fault("producer.rollback.before_ack", place)
                    self._roll_back(each)
                    fault("producer.rollback.after_ack", place)
            self._end()

    def recover(self, intents: Intents) -> None:
        """Write the ACKs of a prepared transaction that are missing; nothing if none is.

        For intents that the caller stored, of this producer or one that has no name.

        Example:
            >>> shop = ws.journals.producer()
            >>> done = shop.append("payments", rows)
            >>> kept = shop.prepare().to_json()  # stored by you, together with what you did
            >>> from millrace.journal.core.intents import Intents
            >>> ws.journals.producer().recover(Intents.from_json(kept))
            >>> ws.journals.read("payments", 0).num_rows
            3
        """
        with self._calls:
            for each in self._broker.standing(intents.producer).open:
                if intents.ends(each):
                    fault("producer.recover.before_ack")
                    self._ack(self._info(each.journal), intents)
                    fault("producer.recover.after_ack")

    def close(self) -> None:
        """Roll back what is open, unless it is prepared, and let go of the name.

        Example:
            >>> shop = ws.journals.producer("shop")
            >>> done = shop.append("payments", rows)
            >>> shop.close()  # rolls back what was neither committed nor prepared
            >>> ws.journals.read("payments", 0).num_rows
            0
        """
        # Who was fenced off has nothing left to end: its successor did.
        with self._calls, contextlib.suppress(LeaseLost):
            if self._intents is None and self._open:
                self.rollback()
            if self._lease is not None:
                self._broker.release(self._lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    # Inside.
    def _finish(self, intents: Intents | None) -> None:
        """End whatever an earlier life left open: as it was prepared, else by rolling it back."""
        standing, (recorded_at, recorded) = self._broker.standing(self.id), self._recorded()
        prepared = [each for each in (intents, recorded) if each is not None]
        clocks = [each.clock for each in prepared if each.producer == self.id]
        self._clock = max(standing.clock, recorded_at, *clocks)
        for each in standing.open:
            ending = next((some for some in prepared if some.ends(each)), None)
            fault("producer.recover.before_ack")
            if ending is None:
                self._roll_back(each)
            else:
                self._ack(self._info(each.journal), ending)
            fault("producer.recover.after_ack")

    def _write(
        self,
        info: JournalInfo,
        rows: Rows,
        flag: Flag,
        keys: pa.Array | None,
        timestamps: pa.Array | None,
    ) -> Appended:
        batch = row_format.conform(rows, info.schema, where=info.name)
        stamped = row_format.stamped_rows(
            batch,
            producer=self.id,
            first_clock=self._draw(batch.num_rows),
            flag=flag,
            keys=row_format.check_keys(keys, batch.num_rows),
            timestamps=row_format.check_timestamps(timestamps, batch.num_rows),
        )
        fault("producer.append.before")
        try:
            done = self._broker.append_stamped(info.name, stamped, lease=self._lease)
        except (UserError, LeaseLost):
            # Refused: nothing of it is there. The journal may be another one by now.
            self._known.pop(info.name, None)
            raise
        except MillraceError as error:
            if flag is Flag.CONTINUE:
                self._open[info.name] = info
                self._doubt = str(error).splitlines()[0]
            raise
        fault("producer.append.after")
        if flag is Flag.CONTINUE and done.rows:
            self._open[info.name] = info
        return done

    def _ack(self, info: JournalInfo, intents: Intents) -> None:
        ack = row_format.stamped_ack(
            info.schema,
            producer=intents.producer,
            clock=intents.clock,
            hints=intents.hints(info.id),
        )
        try:
            self._broker.append_stamped(info.name, ack, lease=self._lease)
        except JournalUnknown:
            # Its rows went with it; the transaction is whole in the others.
            self._known.pop(info.name, None)

    def _roll_back(self, each: OpenIn) -> None:
        """An ACK at or below the last commit drops what is open in a journal."""
        nothing = Intents(producer=self.id, clock=each.last_commit, journals={})
        self._ack(self._info(each.journal), nothing)

    def _record(self, clock: Clock, intents: str | None) -> None:
        """Store what was decided last; asked again, it is stored once."""
        journal = f"{FOLDER}/{self._name}"
        if journal not in self._known:
            self._known[journal] = self._broker.create(journal, _RECORD)
        row = pa.record_batch(
            [pa.array([clock], pa.uint64()), pa.array([intents], pa.string())], _RECORD
        )
        done = self._broker.publish(
            Publish(
                parts=(Append(journal=journal, rows=row),),
                lease=self._lease,
                producer=self._recorder,
                sequence=clock,
            )
        )
        at = done.appended[journal].first_offset
        if at % _RECORDS_KEPT == _RECORDS_KEPT - 1:
            self._broker.truncate_before(journal, at)

    def _recorded(self) -> tuple[Clock, Intents | None]:
        """When something was decided last, and what, if it was to commit."""
        journal = f"{FOLDER}/{self._name}"
        last: dict[str, Any] | None = None
        with contextlib.suppress(JournalUnknown):
            at = self._broker.start_offset(journal)
            while (found := self._broker.read(journal, at)).next_offset > at:
                last = found.rows().slice(found.num_rows - 1).to_pylist()[0]
                at = found.next_offset
        if last is None:
            return BEFORE_ALL, None
        text = last["intents"]
        return Clock(last["clock"]), None if text is None else Intents.from_json(text)

    def _info(self, journal: str) -> JournalInfo:
        if journal not in self._known:
            self._known[journal] = self._broker.get(journal)
        return self._known[journal]

    def _draw(self, count: int) -> Clock:
        """The first of some clocks that rise by one."""
        first = next_clock(self._clock, self._now_ns())
        self._clock = Clock(first + max(0, count - 1))
        return first

    def _end(self) -> None:
        self._open, self._intents, self._doubt = {}, None, None
        self._is_kept = self._is_stored = self._is_committing = False

    def _not_now(self, found: str, fix: str) -> UserError:
        who = "a producer" if self._name is None else f"producer {self._name!r}"
        return UserError(f"the transaction of {who} {found}\n  to fix: {fix}")


def _given(rows: Rows | None, documents: Documents | None) -> Rows:
    if (rows is None) == (documents is None):
        raise UserError("neither rows nor documents, or both\n  to fix: give one of them")
    if documents is None:
        return rows
    texts = [each if isinstance(each, str) else json.dumps(each) for each in documents]
    return pa.record_batch({DOCUMENT: pa.array(texts, pa.string())})


def check_journal_count(count: int, most: int) -> None:
    """Refuse a transaction over very many journals: what it writes grows with their square."""
    if count > most:
        raise UserError(
            f"a transaction over {count:,} journals is too large\n"
            f"  limit: {most:,} (journal_transaction_journals_max)\n"
            "  to fix: write to fewer journals in one transaction, or raise the limit"
        )
