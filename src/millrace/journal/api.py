"""The journals of a workspace, as users see them: `ws.journals`.

The broker below has more calls, for the rest of the package: leases, whole files, many journals at
once. Users need none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from millrace.durations import Duration, seconds
from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.core.intents import Intents
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import ProducerId
from millrace.journal.core.values import (
    Anything,
    Appended,
    Fetched,
    Isolation,
    JournalInfo,
    Rows,
    Truncated,
)
from millrace.journal.producer import Producer
from millrace.journal.transaction import Transaction
from millrace.keys.key_ranges import WHOLE, KeyRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Journals:
    """The journals of a workspace: named, append-only, typed logs. `ws.journals` is one of these.

    Opening a workspace elects no owner. The first call here does: this process becomes the owner of
    the journals and serves them to other processes, or it joins the owner that there is. If the
    owner dies, the next call takes over or joins the next owner. Every method may be called from
    any thread. A call that returned is durable.

    Example:
        >>> ws.journals.append("payments", rows).rows
        3
        >>> ws.journals.read("payments", 0).rows()["amount"].to_pylist()
        [10, 20, 30]
    """

    def __init__(
        self,
        broker: Broker,
        follow: Callable[..., Iterator[Fetched]],
        to_spark: Callable[[Mapping[str, Any]], DataFrame],
    ) -> None:
        """Use `Workspace.journals`. `to_spark` reads the workspace with options of its source."""
        self._broker = broker
        self._follow = follow
        self._to_spark = to_spark
        self._producer_ids: dict[str, ProducerId] = {}

    def create(
        self, name: str, schema: pa.Schema, labels: Mapping[str, str] | None = None
    ) -> JournalInfo:
        """Create a journal. If it exists with the same schema and labels, nothing happens.

        Example:
            >>> schema = pa.schema([("id", pa.int64())])
            >>> ws.journals.create("acme/clicks", schema, labels={"region": "eu"}).name
            'acme/clicks'
        """
        return self._broker.create(name, schema, labels)

    def get(self, name: str) -> JournalInfo:
        """The schema and labels of a journal; `JournalUnknown` if there is none of this name.

        Example:
            >>> ws.journals.get("orders").schema.names
            ['cust_id', 'amount']
        """
        return self._broker.get(name)

    def delete(self, name: str) -> None:
        """Delete a journal, its rows and the offsets that groups committed in it.

        Example:
            >>> ws.journals.delete("payments")
            >>> ws.journals.list("payments")
            ()
        """
        self._broker.delete(name)

    def append(
        self,
        name: str,
        rows: Rows,
        *,
        keys: pa.Array | None = None,
        timestamps: pa.Array | None = None,
        expected: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Appended:
        """Append rows to a journal.

        Args:
            name: of the journal.
            rows: a table or record batch with the columns of the journal.
            keys: a record key for each row, as binary.
            timestamps: a timestamp for each row.
            expected: the end offset of the journal; another one is a `Conflict`.
            producer: with `sequence`, makes it safe to repeat a call whose answer was lost.
            sequence: a number that increases with each call of this producer.

        Example:
            >>> result = ws.journals.append("orders", pa.table({"cust_id": [3], "amount": [40]}))
            >>> result.first_offset
            3
            >>> for _ in range(2):  # the second call adds nothing
            ...     result = ws.journals.append("payments", rows, producer="shop", sequence=1)
            >>> ws.journals.end_offset("payments")
            3
        """
        return self._broker.append(
            name,
            rows,
            keys=keys,
            timestamps=timestamps,
            expected=expected,
            producer=self._producer_id(producer),
            sequence=sequence,
        )

    def transaction(
        self, *, producer: str | None = None, sequence: int | None = None
    ) -> Transaction:
        """A block whose appends and commits are published together at its end, or not at all.

        Args:
            producer: with `sequence`, makes it safe to repeat a block whose outcome is unknown.
            sequence: a number that increases with each transaction of this producer.

        Example:
            >>> orders = ws.journals.read("orders", 0)
            >>> with ws.journals.transaction() as t:
            ...     t.append("payments", orders.rows())
            ...     t.commit("billing", "orders", orders.next_offset, expected=None)
            >>> ws.journals.backlog("billing", "orders")
            0
        """
        return self._broker.transaction(producer=self._producer_id(producer), sequence=sequence)

    def producer(self, name: str | None = None, *, intents: Intents | None = None) -> Producer:
        """A producer, whose transactions stay open over many calls.

        A producer with a name continues the last one of that name, also after a restart: it commits
        what that one had prepared, rolls back its other open rows, and fences it off.

        Args:
            name: of the producer; without one it has no successor.
            intents: of a transaction that the caller stored, to be committed first.

        Example:
            >>> with ws.journals.producer("shop") as shop:
            ...     result = shop.append("orders", rows)
            ...     result = shop.append("payments", rows)
            ...     intents = shop.commit()
            >>> ws.journals.read("payments", 0).num_rows
            3
        """
        return self._broker.producer(name, intents=intents)

    def read(
        self,
        name: str,
        offset: int,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        isolation: Isolation = "committed",
    ) -> Fetched:
        """Read rows of a journal from an offset on; at least one row if there is one.

        Args:
            name: of the journal.
            offset: of the first row; `next_offset` of an answer is where the next read begins.
            rows_max: most rows to read.
            bytes_max: about how many bytes to read at most.
            isolation: "raw" also returns rows of open transactions and the rows that end them.

        Example:
            >>> orders = ws.journals.read("orders", 1, rows_max=1)
            >>> orders.rows().to_pylist()
            [{'cust_id': 2, 'amount': 20}]
            >>> orders.next_offset
            2
        """
        return self._broker.read(
            name, offset, rows_max=rows_max, bytes_max=bytes_max, isolation=isolation
        )

    def follow(
        self,
        prefix: str,
        *,
        key: Mapping[str, Any] | None = None,
        keys: str | Sequence[str] = (),
        key_range: KeyRange = WHOLE,
        priority: Mapping[str, int] | None = None,
        read_delay: Duration | Mapping[str, Duration] = 0,
        from_offset: int | Literal["start", "end"] | Mapping[str, int] | None = None,
        to_offset: int | Literal["end"] | None = None,
        version: str = "",
        timeout: Duration | None = None,
    ) -> Iterator[Fetched]:
        """Read committed rows as they come, of one journal or of all journals under a prefix.

        Args:
            prefix: the name of a journal, or a prefix of names, also of journals created later.
            key: columns and values; only rows that have these values are read.
            keys: with `key_range`, the columns whose hash decides.
            key_range: only rows of this range of `millrace.tile`; without `keys`, by their clocks.
            priority: {prefix: number}; rows of journals with a higher number come first.
            read_delay: how long rows wait after they were written, or {prefix: how long}.
            from_offset: an offset, {journal: offset, ...}, or "end". By default, the first row.
            to_offset: an offset at which to stop, or "end": where rows end now.
            version: of the program that reads; followers of one version share reads.
            timeout: stop when no row came for this long; by default, never.

        Example:
            >>> for orders in ws.journals.follow("orders", to_offset="end"):
            ...     print(orders.journal, orders.rows()["amount"].to_pylist())
            orders [10, 20, 30]
            >>> for orders in ws.journals.follow("orders", key={"cust_id": 1}, to_offset="end"):
            ...     print(orders.rows()["amount"].to_pylist())
            [10, 30]
        """
        return self._follow(
            prefix,
            key=key,
            keys=keys,
            key_range=key_range,
            priority=priority,
            read_delay=read_delay,
            from_offset=from_offset,
            to_offset=to_offset,
            version=version,
            timeout_s=None if timeout is None else seconds(timeout, "timeout"),
        )

    def wait_for_rows(self, after: Mapping[str, int], *, timeout: Duration) -> bool:
        """Wait until one of these journals has committed rows at or above its offset.

        Args:
            after: journals with an offset each.
            timeout: how long to wait; False is returned after that.

        Example:
            >>> ws.journals.wait_for_rows({"orders": 0}, timeout="10s")
            True
            >>> ws.journals.wait_for_rows({"payments": 0}, timeout=0)
            False
        """
        return self._broker.wait_for_rows(after, timeout_s=seconds(timeout, "timeout"))

    def to_spark(
        self, name: str, *, start_offset: int | None = None, end_offset: int | None = None
    ) -> DataFrame:
        """The committed rows of a journal as a Spark DataFrame.

        The DataFrame is the one of `spark.read.format("millrace")`: which rows it has is decided
        when Spark plans the query.

        Args:
            name: of the journal.
            start_offset: of the first row; by default, the first one that there is.
            end_offset: where to stop; by default, the end of the committed rows.

        Example:
            >>> ws.journals.to_spark("orders").count()
            3
            >>> ws.journals.to_spark("orders", start_offset=2).collect()
            [Row(cust_id=1, amount=30)]
        """
        given = {"journal": name, "startOffset": start_offset, "endOffset": end_offset}
        return self._to_spark({key: value for key, value in given.items() if value is not None})

    def start_offset(self, name: str) -> Offset:
        """The first offset that is not truncated.

        Example:
            >>> ws.journals.start_offset("orders")
            0
        """
        return self._broker.start_offset(name)

    def end_offset(self, name: str, *, isolation: Isolation = "committed") -> Offset:
        """The offset after the last row that can be read now.

        Example:
            >>> ws.journals.end_offset("orders")
            3
        """
        return self._broker.end_offset(name, isolation=isolation)

    def commit(
        self, group: str, name: str, offset: int, *, expected: int | Anything | None
    ) -> None:
        """Set the next offset that a group reads in a journal.

        Args:
            group: its name.
            name: of the journal.
            offset: the offset that the group reads next.
            expected: the offset that the group has now; None if it has none yet. Another one is a
                `Conflict`.

        Example:
            >>> ws.journals.commit("billing", "orders", 2, expected=None)
            >>> ws.journals.commit("billing", "orders", 3, expected=2)
            >>> ws.journals.committed("billing", "orders")
            3
        """
        self._broker.commit(group, name, offset, expected=expected)

    def committed(self, group: str, name: str) -> Offset | None:
        """The next offset that a group reads in a journal; None if it never committed.

        Example:
            >>> ws.journals.committed("audit", "orders") is None
            True
        """
        return self._broker.committed(group, name)

    def backlog(self, group: str, name: str) -> int:
        """The number of committed rows that a group has yet to read.

        Example:
            >>> ws.journals.commit("billing", "orders", 1, expected=None)
            >>> ws.journals.backlog("billing", "orders")
            2
        """
        return self._broker.backlog(group, name)

    def truncate(
        self, name: str, *, before: int | None = None, committed: bool = False, force: bool = False
    ) -> Truncated:
        """Remove rows from the start of a journal.

        Args:
            name: of the journal.
            before: remove the rows below this offset; `StillNeeded` if a group has not read them.
            committed: remove the rows that every group has read; none if no group has committed.
            force: with `before`, remove the rows even if a group still needs them.

        Example:
            >>> ws.journals.truncate("orders", before=1).removed
            1
            >>> ws.journals.commit("billing", "orders", 2, expected=None)
            >>> ws.journals.truncate("orders", committed=True).removed
            1
            >>> ws.journals.start_offset("orders")
            2
        """
        if committed == (before is not None) or (committed and force):
            raise UserError(
                f"journals.truncate: it is not clear which rows of {name} to remove\n"
                f"  found: before={before!r}, committed={committed!r}, force={force!r}\n"
                "  to fix: give before=offset (with force=True if groups may lose rows), or "
                "committed=True"
            )
        if before is None:
            return self._broker.truncate_committed(name)
        return self._broker.truncate_before(name, before, force=force)

    def _producer_id(self, name: str | None) -> ProducerId | None:
        if name is None:
            return None
        if name not in self._producer_ids:
            self._producer_ids[name] = self._broker.producer_id(name)
        return self._producer_ids[name]

    # Last, since it hides the built-in name from what follows.
    def list(
        self, prefix: str = "", labels: Mapping[str, str | Sequence[str]] | None = None
    ) -> tuple[JournalInfo, ...]:
        """The journals under a prefix that have these labels, by name.

        Example:
            >>> [journal.name for journal in ws.journals.list("orders")]
            ['orders']
        """
        return self._broker.list(prefix, labels)


def broker_of(journals: Journals) -> Broker:
    """The broker below: all calls, for the rest of the package."""
    return journals._broker  # noqa: SLF001 - the one way for the package
