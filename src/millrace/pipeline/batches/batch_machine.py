"""Decides about the batches of one unit, so that none is made twice and no result is lost. Pure.

One turn of a worker: `on_*` methods take what happened and return what to do. An action that names
an `on_*` method is the last of its answer: that method is called with the outcome.

Invariant: a batch is made only after its key is recorded. It is made once more only if the
provider, asked at least `settle_us` after the last try, has none with this key. Rows are published
in their order, in one transaction with the unit's offset: so each once, whatever is fetched again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from millrace.pipeline.batches.batch_records import BatchRecord, BatchRecordKind
from millrace.pipeline.core.unit_choice import TurnEnd


class RowFate(StrEnum):
    """What is known about the question of one row."""

    ANSWERED = "answered"
    OPEN = "open"
    """No answer yet, or none of use: it is asked again."""
    REFUSED = "refused"
    """Asking again would end alike."""


@dataclass(frozen=True, slots=True)
class ReadNewRows:
    """Read rows that no batch was made for; then `on_rows`."""


@dataclass(frozen=True, slots=True)
class ReadRowsAgain:
    """Read the rows up to this offset again; then `on_rows_again`."""

    next: int


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Append to the record; then `on_recorded`."""

    record: BatchRecord


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Append to the record, and in the same transaction that the step failed; ends the turn."""

    record: BatchRecord
    error: str
    """Why; empty if it is the error of the row."""
    row: int
    """The index of the row that the step gives up at."""


@dataclass(frozen=True, slots=True)
class FindBatch:
    """Look for a batch at the provider; then `on_found`."""

    record: BatchRecord


@dataclass(frozen=True, slots=True)
class MakeBatch:
    """Make a batch for these rows; then `on_made`, `on_not_made` or `on_unknown`."""

    record: BatchRecord
    rows: tuple[int, ...]
    """Indexes of the rows."""


@dataclass(frozen=True, slots=True)
class LookAtBatch:
    """Ask how a batch is; then `on_looked`."""

    batch: str


@dataclass(frozen=True, slots=True)
class FetchResults:
    """Fetch the results of batches that ended, oldest first; then `on_results`."""

    batches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishRows:
    """Publish the rows up to this index with what became of each; then `on_published`."""

    end: int


@dataclass(frozen=True, slots=True)
class CallRows:
    """Ask for these rows one by one, as other steps do: they are too few for a batch."""


@dataclass(frozen=True, slots=True)
class EndBatchTurn:
    """The turn is over."""

    end: TurnEnd


BatchAction = (
    ReadNewRows
    | ReadRowsAgain
    | RecordBatch
    | GiveUp
    | FindBatch
    | MakeBatch
    | LookAtBatch
    | FetchResults
    | PublishRows
    | CallRows
    | EndBatchTurn
)
Looked = Literal["in work", "ended", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """How a step asks in batches."""

    name: str
    """Begins the keys of the unit's batches."""
    journal: str = ""
    """The unit's journal."""
    server: str = ""
    """How the provider is reached."""
    attempts_max: int = 4
    """How many batches a row may be in before it is given up."""
    rows_min: int = 1
    """Fewer rows are asked for one by one."""
    settle_us: int = 60_000_000
    """How long after its intent a batch may still appear at the provider."""
    publish_rows_max: int = 1_000
    gives_up: bool = False
    """Whether a row without an answer ends the step (`on_error="fail"`)."""


class BatchMachine:
    """One turn of a worker on a unit of a step that asks in batches."""

    def __init__(self, rules: BatchRules, record: BatchRecord | None, *, at: int) -> None:
        """`record` is the last one that still counts; `at` the unit's committed offset."""
        self._rules, self._record, self._at = rules, record, at
        self._offsets: Sequence[int] = ()
        self._next = at
        self._hopeless: frozenset[int] = frozenset()
        self._fates: list[RowFate] = []
        self._published = 0
        """The index behind the last row whose outcome is published."""
        self._looked: Looked | None = None
        self._sending: BatchRecord | None = None

    def on_start(self) -> list[BatchAction]:
        """Begin the turn."""
        if self._record is None:
            return [ReadNewRows()]
        return [ReadRowsAgain(self._record.next)]

    def on_rows(
        self,
        offsets: Sequence[int],
        next_: int,
        now_us: int,
        hopeless: frozenset[int] = frozenset(),
    ) -> list[BatchAction]:
        """New rows, up to an offset. `hopeless` are indexes of those that give no question."""
        if offsets and len(offsets) < self._rules.rows_min:
            return [CallRows()]
        self._take(offsets, next_, hopeless)
        if not self._open_rows():
            return self._go_on(now_us)
        return self._intend(now_us, earlier=(), attempt=1)

    def on_rows_again(
        self,
        offsets: Sequence[int],
        next_: int,
        now_us: int,
        hopeless: frozenset[int] = frozenset(),
    ) -> list[BatchAction]:
        """The rows of the record, from the committed offset on."""
        record = self._last
        self._take(offsets, next_, hopeless)
        if not offsets:
            return self._go_on(now_us)
        match record.kind:
            case BatchRecordKind.INTENT:
                return [FindBatch(record)]
            case BatchRecordKind.MADE:
                return [LookAtBatch(record.batch)]
            case BatchRecordKind.STOPPED:
                return [FetchResults(record.earlier)]

    def _take(self, offsets: Sequence[int], next_: int, hopeless: frozenset[int]) -> None:
        self._offsets, self._next, self._hopeless = offsets, next_, hopeless
        self._fates = [
            RowFate.REFUSED if index in hopeless else RowFate.OPEN for index in range(len(offsets))
        ]

    # Making a batch.
    def _intend(self, now_us: int, *, earlier: tuple[str, ...], attempt: int) -> list[BatchAction]:
        first = self._offsets[self._published] if self._offsets else self._at
        self._sending = BatchRecord(
            at_us=now_us,
            kind=BatchRecordKind.INTENT,
            journal=self._rules.journal,
            first=first,
            next=self._next,
            key=f"{self._rules.name}-{first}-{self._next}-{attempt}-{now_us}",
            batch="",
            rows=len(self._open_rows()),
            earlier=earlier,
            attempt=attempt,
            server=self._rules.server,
        )
        return [RecordBatch(self._sending)]

    def on_recorded(self) -> list[BatchAction]:
        """The record is durable."""
        record = self._record = self._sent()
        match record.kind:
            case BatchRecordKind.INTENT if record.earlier and self._looked is None:
                return [FetchResults(record.earlier)]
            case BatchRecordKind.INTENT:
                return [MakeBatch(record, self._open_rows())]
            case BatchRecordKind.MADE:
                return [LookAtBatch(record.batch)]
            case BatchRecordKind.STOPPED:
                raise AssertionError("a turn that gives up is over")

    def _sent(self) -> BatchRecord:
        record, self._sending = self._sending, None
        assert record is not None, "nothing is being recorded"
        return record

    def _open_rows(self) -> tuple[int, ...]:
        rows = range(self._published, len(self._fates))
        return tuple(index for index in rows if self._fates[index] is RowFate.OPEN)

    def on_found(self, batch: str | None, now_us: int, *, is_sure: bool) -> list[BatchAction]:
        """What the provider has with the key of the intent."""
        record = self._last
        if batch is not None:
            return self._record_made(batch, now_us)
        if not is_sure or now_us - record.at_us < self._rules.settle_us:
            return [EndBatchTurn(TurnEnd.WAITING)]
        # The time counts from the last try to make it.
        self._sending = replace(record, at_us=now_us)
        return [RecordBatch(self._sending)]

    def on_made(self, batch: str, now_us: int) -> list[BatchAction]:
        """The batch is made."""
        return self._record_made(batch, now_us)

    def on_unknown(self) -> list[BatchAction]:
        """Nobody knows whether the batch is made: later the provider can tell."""
        return [EndBatchTurn(TurnEnd.WAITING)]

    def on_not_made(self, error: str, now_us: int) -> list[BatchAction]:
        """The provider refused to make the batch."""
        return self._stop(error, now_us, earlier=self._last.earlier)

    def _record_made(self, batch: str, now_us: int) -> list[BatchAction]:
        kind = BatchRecordKind.MADE
        self._sending = replace(self._last, at_us=now_us, kind=kind, batch=batch)
        return [RecordBatch(self._sending)]

    # Its end.
    def on_looked(self, state: Looked, error: str, now_us: int) -> list[BatchAction]:
        """How the batch is."""
        record = self._last
        self._looked = state
        match state:
            case "in work":
                return [EndBatchTurn(TurnEnd.WAITING)]
            case "failed":
                return self._stop(error, now_us, earlier=record.earlier)
            case "ended" | "cancelled":
                return [FetchResults((*record.earlier, record.batch))]

    def on_results(self, fates: Mapping[int, RowFate], now_us: int) -> list[BatchAction]:
        """What became of the rows, by index, in all batches that ended."""
        for index, fate in fates.items():
            self._fates[index] = fate
        record = self._last
        is_intent = record.kind is BatchRecordKind.INTENT
        if record.kind is BatchRecordKind.STOPPED or (is_intent and record.attempt == 1):
            # The user ran the job again: what was refused is asked again, too.
            self._turn(RowFate.REFUSED, RowFate.OPEN)
        elif record.attempt >= self._rules.attempts_max and self._looked == "ended":
            self._turn(RowFate.OPEN, RowFate.REFUSED)
        return [MakeBatch(record, self._open_rows())] if is_intent else self._go_on(now_us)

    def _turn(self, fate: RowFate, into: RowFate) -> None:
        self._fates = [
            into if each is fate and index not in self._hopeless else each
            for index, each in enumerate(self._fates)
        ]

    def on_published(self, now_us: int) -> list[BatchAction]:
        """The rows are published."""
        return self._go_on(now_us)

    def _go_on(self, now_us: int) -> list[BatchAction]:
        """Publish what is settled, then ask again for what is not."""
        end = self._published
        most = min(len(self._fates), end + self._rules.publish_rows_max)
        while end < most and self._is_settled(self._fates[end]):
            end += 1
        is_last = end == len(self._fates)
        if end > self._published or (is_last and self._at < self._next):
            self._published = end
            self._at = self._next if is_last else self._offsets[end]
            return [PublishRows(end)]
        if is_last:
            return [EndBatchTurn(TurnEnd.OVER)]
        return self._ask_again(now_us)

    def _is_settled(self, fate: RowFate) -> bool:
        return fate is RowFate.ANSWERED or (fate is RowFate.REFUSED and not self._rules.gives_up)

    def _ask_again(self, now_us: int) -> list[BatchAction]:
        record = self._last
        if record.kind is BatchRecordKind.STOPPED:
            return self._intend(now_us, earlier=record.earlier, attempt=1)
        earlier = (*record.earlier, record.batch)
        if self._looked == "cancelled":
            text = f"batch {record.batch} was cancelled"
            return self._stop(text, now_us, earlier=earlier)
        if self._fates[self._published] is RowFate.REFUSED:
            return self._stop("", now_us, earlier=earlier)
        return self._intend(now_us, earlier=earlier, attempt=record.attempt + 1)

    def _stop(self, error: str, now_us: int, *, earlier: tuple[str, ...]) -> list[BatchAction]:
        """The step gives up; the next run asks for the rest in a new batch."""
        kind = BatchRecordKind.STOPPED
        record = replace(self._last, at_us=now_us, kind=kind, earlier=earlier, batch="")
        return [GiveUp(record, error, self._published)]

    @property
    def _last(self) -> BatchRecord:
        assert self._record is not None, "a batch has a record"
        return self._record
