"""What the tests of state on streams write, and what must come out of it.

A teller moves money and sells things. Each of its transactions is over all journals and has an
event time of its own, later than those before. A stream shows a producer's transactions in order if
each of them is over the same journals: to show one, it must have read all of them so far. So no
batch has a row that is older than what an earlier one had, and no row is late, although watermarks
here wait for nothing. In a join of two streams the watermark is the lower of theirs.

An auditor writes into the bank's journals, too, at its own pace. Nothing can be said about how its
rows lie between the teller's: they are left out before a watermark is made, and states are kept for
each of the two apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

import millrace as mr

BANK: Final = ("bank/a", "bank/b", "bank/c")
ORDERS: Final = ("shop/orders/0", "shop/orders/1")
PAYMENTS: Final = ("shop/payments/0", "shop/payments/1")
TELLER, AUDITOR = "teller", "auditor"
EVENT_TIME: Final = pa.timestamp("us", "UTC")
MOVES: Final = pa.schema(
    [
        ("who", pa.string()),
        ("txn", pa.int64()),
        ("account", pa.int64()),
        ("amount", pa.int64()),
        ("at", EVENT_TIME),
    ]
)
SALES: Final = pa.schema([("order_id", pa.int64()), ("ordered_at", EVENT_TIME)])
PAID: Final = pa.schema([("paid_id", pa.int64()), ("paid_at", EVENT_TIME)])
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
STEP: Final = timedelta(seconds=20)
"""Between two transactions of the teller, in event time."""
ACCOUNTS: Final = 7
WINDOW: Final = "5 minutes"
TO_PAY: Final = "100 seconds"
"""A payment that comes later than this does not count."""
PAUSE_S: Final = 0.4
"""Between two transactions, in real time."""
MARK: Final = -1_000
"""Numbers up to this one mark the end: they are in no result."""
MARK_DAYS: Final = (30, 60)
MARKED_FROM: Final = int((BEGIN + timedelta(days=MARK_DAYS[0])).timestamp())
"""Windows from here on are those of marks."""

Rows = dict[str, pa.Table]


def moves(who: str, txn: int, at: datetime) -> Rows:
    """A debit in one journal, credits in the others; together they are nothing."""
    first = txn % len(BANK)
    found = {}
    for place, name in enumerate(BANK):
        credit = {(txn + n) % ACCOUNTS: txn % 13 + n for n in range(1 + (txn + place) % 3)}
        found[name] = credit
    debit = -sum(sum(each.values()) for name, each in found.items() if name != BANK[first])
    found[BANK[first]] = {txn % ACCOUNTS: debit}
    return {
        name: pa.table(
            {
                "who": [who] * len(each),
                "txn": [txn] * len(each),
                "account": list(each),
                "amount": list(each.values()),
                "at": [at] * len(each),
            },
            schema=MOVES,
        )
        for name, each in found.items()
    }


def sales(txn: int, at: datetime) -> Rows:
    """An order in each of its journals, and payments of earlier ones, some too late, some never."""
    rows: Rows = {}
    for n, name in enumerate(ORDERS):
        rows[name] = pa.table({"order_id": [2 * txn + n], "ordered_at": [at]}, schema=SALES)
    for n, name in enumerate(PAYMENTS):
        paid = 2 * (txn - (7 * txn + n) % 11) + n
        rows[name] = pa.table({"paid_id": [paid], "paid_at": [at]}, schema=PAID)
    return rows


def of_teller(txn: int) -> Rows:
    """The teller's transaction of this number."""
    at = BEGIN + STEP * txn
    return moves(TELLER, txn, at) | sales(txn, at)


def of_auditor(txn: int) -> Rows:
    """The auditor's transaction of this number."""
    return moves(AUDITOR, txn, BEGIN)


def end_mark(days: int) -> Rows:
    """Rows so late that every window before them is over."""
    at = BEGIN + timedelta(days=days)
    rows = moves(TELLER, MARK - days, at)
    for name in ORDERS:
        rows[name] = pa.table({"order_id": [MARK - days], "ordered_at": [at]}, schema=SALES)
    for name in PAYMENTS:
        rows[name] = pa.table({"paid_id": [2 * MARK], "paid_at": [at]}, schema=PAID)
    return rows


def make_journals(ws: mr.Workspace) -> None:
    for names, schema in ((BANK, MOVES), (ORDERS, SALES), (PAYMENTS, PAID)):
        for name in names:
            ws.journals.create(name, schema)


@dataclass
class Writing:
    """Goes on writing beside the test, as both producers, until it is ended."""

    ws: mr.Workspace
    pause_s: float = PAUSE_S
    teller: int = 0
    """Transactions that are committed."""
    auditor: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), daemon=True)
            for run in (self._tell, self._audit)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop, and mark the end, twice: a watermark is used by the batch after the one with it."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        with self.ws.journals.producer(TELLER) as teller:
            for days in MARK_DAYS:
                for name, rows in end_mark(days).items():
                    teller.append(name, rows)
                teller.commit()

    def _tell(self) -> None:
        with self.ws.journals.producer(TELLER) as teller:
            while not self._stop.wait(self.pause_s):
                for name, rows in of_teller(self.teller).items():
                    teller.append(name, rows)
                teller.commit()
                self.teller += 1

    def _audit(self) -> None:
        number = 0
        with self.ws.journals.producer(AUDITOR) as auditor:
            while not self._stop.wait(self.pause_s * 1.7):
                for name, rows in of_auditor(number).items():
                    auditor.append(name, rows)
                if number % 4 == 3:
                    auditor.rollback()
                else:
                    auditor.commit()
                    self.auditor.append(number)
                number += 1

    def _guard(self, run: object) -> None:
        assert callable(run)
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - raised by end()
            self._failure = error
            self._stop.set()


class Oracle:
    """What DuckDB says about everything that was written."""

    def __init__(self, writing: Writing) -> None:
        told = [of_teller(n) for n in range(writing.teller)]
        marks = [end_mark(days) for days in MARK_DAYS]
        audited = [of_auditor(n) for n in writing.auditor]
        self.moves = _stacked([*told, *marks, *audited], BANK)
        self.orders = _stacked([*told, *marks], ORDERS)
        self.payments = _stacked([*told, *marks], PAYMENTS)

    def rows(self) -> list[list[object]]:
        """Every row of the bank."""
        return self._ask("SELECT journal, who, txn, account, amount FROM moves")

    def windows(self) -> list[list[object]]:
        """What each account had moved by the teller, in each window of five minutes."""
        return self._ask(
            f"""SELECT epoch(time_bucket(INTERVAL '{WINDOW}', moves.at))::BIGINT AS began, account,
                       sum(amount)::BIGINT, count(*)
                FROM moves WHERE who = '{TELLER}' AND txn > {MARK} GROUP BY ALL"""
        )

    def running(self) -> list[list[object]]:
        """What each account held after each row, for each of the two apart."""
        return self._ask(
            f"""SELECT who, account, txn, journal, balance FROM (
                    SELECT who, account, txn, journal,
                        (sum(amount) OVER (PARTITION BY who, account ORDER BY txn, journal
                         ROWS UNBOUNDED PRECEDING))::BIGINT AS balance
                    FROM moves WHERE txn > {MARK})"""
        )

    def joined(self) -> list[list[object]]:
        """Each order with its payments that came in time, or with none."""
        return self._ask(
            f"""SELECT order_id, epoch(paid_at)::BIGINT FROM orders LEFT JOIN payments
                ON order_id = paid_id AND paid_at BETWEEN ordered_at
                   AND ordered_at + INTERVAL '{TO_PAY}' WHERE order_id > {MARK}"""
        )

    def _ask(self, query: str) -> list[list[object]]:
        with duckdb.connect() as engine:
            engine.execute("SET TimeZone = 'UTC'")
            for name in ("moves", "orders", "payments"):
                engine.register(name, getattr(self, name))
            return in_order(engine.execute(query).fetchall())


def _stacked(transactions: Iterable[Rows], names: Iterable[str]) -> pa.Table:
    wanted = list(names)
    tables = []
    for rows in transactions:
        for name in wanted:
            journal = pa.array([name] * rows[name].num_rows, pa.string())
            tables.append(rows[name].append_column("journal", journal))
    return pa.concat_tables(tables)


def in_order(rows: Iterable[Iterable[object]]) -> list[list[object]]:
    """Rows as lists, in an order that is the same wherever they come from."""
    return sorted((list(row) for row in rows), key=repr)


def begun_not_committed(log: Path, after: int) -> bool:
    """Whether a query has a batch above this number in its offset log and not in its commit log."""
    begun = numbers(log / "offsets")
    return bool(begun) and begun[-1] > after and begun[-1] not in numbers(log / "commits")


def numbers(folder: Path) -> list[int]:
    """The batches that a log of Spark's has, in order."""
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in found if name.isdecimal())
