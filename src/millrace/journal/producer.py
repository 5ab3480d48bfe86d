"""Producers, whose transactions stay open over many calls and journals.

Rows of an open transaction are CONTINUE rows. To commit it, the producer writes an ACK in each of
its journals, one after the other. All ACKs have one clock, at or above that of every row. Each ACK
names the other journals, so that readers can put the transaction together again. The intents are
stored first: after a crash between two ACKs, the next producer of that name writes the rest.

Invariant: a prepared transaction is committed in all of its journals, or rolled back in all of them
if `rollback` was the next call. A transaction that was not prepared is rolled back. Clocks increase
over all journals and over restarts, also if the system time goes back.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import pyarrow as pa

from millrace.config import Config
from millrace.errors import JournalUnknown, LeaseLost, MillraceError, SchemaMismatch, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core import row_format
from millrace.journal.core.call_arguments import check_journal_count
from millrace.journal.core.clocks import BEFORE_ALL, Clock, next_clock
from millrace.journal.core.intents import Intents
from millrace.journal.core.journal_names import check_name
from millrace.journal.core.row_format import PRODUCER_MAX, Flag, ProducerId
from millrace.journal.core.values import Appended, JournalInfo, Lease, Rows
from millrace.journal.intent_records import FOLDER, IntentRecords
from millrace.journal.json_documents import Documents, rows_given
from millrace.journal.numbered_calls import NumberedCalls


def random_producer() -> ProducerId:
    """A random producer id."""
    return ProducerId(secrets.randbelow(PRODUCER_MAX) + 1)


class Producer:
    """Writes rows in transactions of its own. Many threads may use it; their calls take turns.

    Example:
        >>> with ws.journals.producer("shop") as shop:
        ...     result = shop.append("orders", rows)
        ...     result = shop.append("payments", rows)
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
        """Why rows of the open transaction may or may not be there: it can only be rolled back."""
        if name is None:
            self.id = random_producer()
            self._numbered = NumberedCalls(broker, self.id, None)
            self._clock = BEFORE_ALL
            if intents is not None:
                self.recover(intents)
        else:
            check_name(name)
            # The same holder gets a new epoch, which fences its older self.
            self._lease = broker.acquire(f"{FOLDER}/{name}", name)
            fault("producer.open.after_lease")
            self.id = broker.producer_id(name)
            self._numbered = NumberedCalls(broker, self.id, self._lease)
            self._records = IntentRecords(broker, name, self._lease)
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
        """Add rows to the open transaction; the first append begins one.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     result = shop.append("payments", rows)
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
            given = rows_given(rows, documents)
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
        """Append rows that commit themselves, outside the open transaction.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     result = shop.append_now("payments", rows)
            >>> ws.journals.read("payments", 0).num_rows
            3
        """
        with self._calls:
            if journal in self._open:
                fix = "commit or roll back first, or append them to it"
                raise self._not_now(f"has rows in journal {journal!r}", fix)
            info = self._info(journal)
            return self._write(info, rows_given(rows, documents), Flag.OUTSIDE, keys, timestamps)

    # Ending a transaction.
    def prepare(self, *, keep: bool = True) -> Intents:
        """Decide to commit. From now on the transaction survives a crash.

        A named producer stores the intents before it returns, and the next producer of that name
        writes the ACKs that are missing. With `keep=False`, or without a name, the caller stores
        the intents and gives them to `Journals.producer(name, intents=...)` or to `recover`.

        Example:
            >>> shop = ws.journals.producer("shop")
            >>> result = shop.append("payments", rows)
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
                self._records.store(self._intents.clock, self._intents.to_json())
                self._is_stored = True
                fault("producer.prepare.after_store")
            return self._intents

    def commit(self) -> Intents:
        """Commit the open transaction: prepare it if necessary, and write its ACKs.

        After an error it can be called again, and continues.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     result = shop.append("payments", rows)
            ...     list(shop.commit().journals)
            ['payments']
        """
        with self._calls:
            intents = self.prepare()
            self._is_committing = bool(intents.journals)
            for number, name in enumerate(intents.journals):
                fault("producer.commit.before_ack", number)
                self._ack(self._open[name], intents)
                fault("producer.commit.after_ack", number)
            self._end()
            return intents

    def rollback(self) -> None:
        """Roll back the open transaction, also one that was prepared.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     result = shop.append("payments", rows)
            ...     shop.rollback()
            >>> ws.journals.read("payments", 0).num_rows
            0
        """
        with self._calls:
            if self._is_committing:
                raise self._not_now("may be committed in some journals", "commit it again")
            if self._open:
                self._doubt = "its rollback did not come to its end"
            if self._intents is not None and self._is_kept:
                fault("producer.rollback.before_store")
                self._records.store(self._draw(1), None)
                fault("producer.rollback.after_store")
            found = self._broker.standing(self.id).open if self._open else ()
            last_commits = {open_in.id: open_in.last_commit for open_in in found}
            for number, info in enumerate(self._open.values()):
                # Also where nothing is open: rows that are still on their way come too late then.
                fault("producer.rollback.before_ack", number)
                self._roll_back(info, last_commits.get(info.id, BEFORE_ALL))
                fault("producer.rollback.after_ack", number)
            self._end()

    def recover(self, intents: Intents) -> None:
        """Write the missing ACKs of a prepared transaction, from intents that the caller stored.

        The intents are those of this producer, or of a producer without a name.

        Example:
            >>> shop = ws.journals.producer()
            >>> result = shop.append("payments", rows)
            >>> kept = shop.prepare().to_json()  # stored by you, together with what you did
            >>> ws.journals.producer().recover(mr.Intents.from_json(kept))
            >>> ws.journals.read("payments", 0).num_rows
            3
        """
        with self._calls:
            for open_in in self._broker.standing(intents.producer).open:
                if intents.ends(open_in):
                    fault("producer.recover.before_ack")
                    self._ack(self._info(open_in.journal), intents)
                    fault("producer.recover.after_ack")

    def close(self) -> None:
        """Roll back the open transaction unless it is prepared, and release the name.

        Example:
            >>> shop = ws.journals.producer("shop")
            >>> result = shop.append("payments", rows)
            >>> shop.close()  # rolls back what was neither committed nor prepared
            >>> ws.journals.read("payments", 0).num_rows
            0
        """
        # A fenced producer has nothing left to end: its successor did that.
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
        """End the transactions of the last producer: commit prepared ones, roll back others."""
        standing, (recorded_at, recorded) = self._broker.standing(self.id), self._records.last()
        prepared = [known for known in (intents, recorded) if known is not None]
        clocks = [known.clock for known in prepared if known.producer == self.id]
        self._clock = max(standing.clock, recorded_at, *clocks)
        for open_in in standing.open:
            ending = next((known for known in prepared if known.ends(open_in)), None)
            fault("producer.recover.before_ack")
            if ending is None:
                self._roll_back(self._info(open_in.journal), open_in.last_commit)
            else:
                self._ack(self._info(open_in.journal), ending)
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
        if flag is Flag.OUTSIDE or not batch.num_rows:
            return self._send(info, stamped)
        # Noted before it is known what became of them. An answer may also say that they were there
        # already: an earlier one was lost.
        is_first = info.name not in self._open
        self._open[info.name] = info
        self._doubt = "an append was interrupted"
        try:
            done = self._send(info, stamped)
        except (UserError, LeaseLost):
            # Refused: nothing of it is there.
            self._doubt = None
            if is_first:
                del self._open[info.name]
            raise
        except MillraceError as error:
            self._doubt = str(error).splitlines()[0]
            raise
        self._doubt = None
        return done

    def _send(self, info: JournalInfo, stamped: pa.RecordBatch) -> Appended:
        try:
            done = self._numbered.append(info.name, stamped)
        except (UserError, LeaseLost):
            # The journal may be another one by now.
            self._known.pop(info.name, None)
            raise
        fault("producer.append.after")
        return done

    def _ack(self, info: JournalInfo, intents: Intents) -> None:
        ack = row_format.stamped_ack(
            info.schema,
            producer=intents.producer,
            clock=intents.clock,
            hints=intents.hints(info.id),
        )
        try:
            self._numbered.append(info.name, ack)
        except (JournalUnknown, SchemaMismatch):
            # Deleted, and perhaps made again: its rows went with it, and the transaction is whole
            # in the others.
            self._known.pop(info.name, None)

    def _roll_back(self, info: JournalInfo, last_commit: Clock) -> None:
        """An ACK at or below the last commit drops what is open in a journal."""
        self._ack(info, Intents(producer=self.id, clock=last_commit, journals={}))

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

    def _not_now(self, state: str, fix: str) -> UserError:
        who = "a producer" if self._name is None else f"producer {self._name!r}"
        return UserError(f"the transaction of {who} {state}\n  to fix: {fix}")
