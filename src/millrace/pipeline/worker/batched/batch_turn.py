"""A turn of a worker on a unit of a step that asks in batches: does what its machine decides.

A provider's answer is awaited only as long as one request takes. While a batch is in work the turn
ends, and the run leaves the unit alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, assert_never

from millrace.durations import ms
from millrace.faults import fault
from millrace.llm.batch_calls import BatchCalls, NotSure, batch_calls_of
from millrace.llm.provider_calls import RequestFailed
from millrace.pipeline.batches.batch_machine import (
    BatchAction,
    BatchMachine,
    BatchRules,
    CallRows,
    EndBatchTurn,
    FetchResults,
    FindBatch,
    GiveUp,
    LookAtBatch,
    MakeBatch,
    PublishRows,
    ReadNewRows,
    ReadRowsAgain,
    RecordBatch,
)
from millrace.pipeline.batches.batch_records import BatchRecord, BatchRecordKind
from millrace.pipeline.calling.function_caller import FunctionCaller
from millrace.pipeline.core.call_outcomes import Failure
from millrace.pipeline.core.call_ranges import CallRange
from millrace.pipeline.core.hop_rows import row_keys
from millrace.pipeline.core.job_events import ALONE, JobEventKind
from millrace.pipeline.core.unit_choice import TurnEnd
from millrace.pipeline.core.unit_publish import UnitPublish
from millrace.pipeline.paid.call_records import Held, Totals
from millrace.pipeline.prompts.batch_asking import GUESSED_ROWS, BatchAsking, RowAnswers
from millrace.pipeline.worker.batched.batch_book import BatchBook
from millrace.pipeline.worker.batched.batch_wallet import BatchWallet
from millrace.pipeline.worker.call_range_reader import CallRangeReader
from millrace.pipeline.worker.publisher import Publisher
from millrace.pipeline.worker.turn import LeasedUnit, now_us

_NAME_DIGITS: Final = 20
_LOG: Final = logging.getLogger(__name__)


class BatchTurn:
    """Carries out what a `BatchMachine` decides."""

    def __init__(
        self,
        unit: LeasedUnit,
        asking: BatchAsking,
        record: BatchRecord | None,
        *,
        caller: FunctionCaller,
        ranges: CallRangeReader,
        publisher: Publisher,
        book: BatchBook,
        totals: Totals,
        wallet: BatchWallet,
    ) -> None:
        """`record` is the last one that still counts."""
        self.unit, self.asking, self._caller = unit, asking, caller
        self._ranges, self._publisher, self._book = ranges, publisher, book
        self._totals, self._wallet = totals, wallet
        options = caller.options
        rules = BatchRules(
            name=f"{caller.asker.hex()[:_NAME_DIGITS]}-{int(unit.journal.id)}",
            journal=unit.journal.name,
            server=asking.server,
            attempts_max=1 + max(1, options.retries),
            rows_min=asking.rows_min,
            settle_us=1000 * ms(unit.config.job_batch_settle),
            gives_up=options.on_error == "fail",
        )
        self._machine = BatchMachine(rules, record, at=publisher.at)
        self._has_record = record is not None
        self._range: CallRange | None = None
        self._answers = RowAnswers(asking.prompt, ())
        self._keys: tuple[str, ...] = ()
        self._is_again = False
        self._guess: Held | None = None
        self._published = 0
        self._batch = ""

    def run(self) -> TurnEnd | None:
        """Work until the machine ends the turn; None if the rows are to be asked for one by one."""
        calls = batch_calls_of(self.asking.prompt.model)
        try:
            actions = self._machine.on_start()
            while True:
                (action,) = actions
                match action:
                    case EndBatchTurn(end):
                        return self._end(end)
                    case CallRows():
                        return None
                    case _:
                        if self._ends_before(action):
                            return TurnEnd.OVER
                        actions = self._do(action, calls)
        finally:
            calls.close()

    def _ends_before(self, action: BatchAction) -> bool:
        """Whether a stop ends the turn here: not between an intent and the id of its batch.

        The next turn would have to wait until it is sure that no batch was made.
        """
        match action:
            case RecordBatch(record) if record.kind is BatchRecordKind.MADE:
                return False
            case MakeBatch():
                return self.unit.keeper.has_lost(self.unit.lease)
            case _:
                return self.unit.is_ending()

    def _end(self, end: TurnEnd) -> TurnEnd:
        if end is TurnEnd.WAITING:
            event = self.unit.notes.event(
                now_us(), JobEventKind.WAITING, self._caller.step.name, batch=self._batch
            )
            self._publisher.publish(UnitPublish(next=self._publisher.at, events=(event,)), "settle")
        return end

    def _do(self, action: BatchAction, calls: BatchCalls) -> list[BatchAction]:
        """Carry out one action."""
        machine = self._machine
        match action:
            case ReadNewRows():
                return self._read(self._ranges.next(self.unit.goes_on), again=False)
            case ReadRowsAgain(next_):
                again = self._ranges.up_to(next_)
                if again is None:
                    return [EndBatchTurn(TurnEnd.OVER)]
                return self._read(again, again=True)
            case RecordBatch(record):
                ends = self._reserve(record) if record.kind is BatchRecordKind.INTENT else None
                if ends is not None:
                    return self._spent() if ends is TurnEnd.SPENT else [EndBatchTurn(ends)]
                self._record(record)
                return machine.on_recorded()
            case GiveUp(record, error, row):
                return self._give_up(record, error, row)
            case FindBatch() | MakeBatch() | LookAtBatch() | FetchResults():
                return self._ask(action, calls)
            case PublishRows(end):
                self._publish(end)
                return machine.on_published(now_us())
            case CallRows() | EndBatchTurn():
                raise AssertionError(f"{action} in the middle of a turn")
            case _:
                assert_never(action)

    def _read(self, range_: CallRange, *, again: bool) -> list[BatchAction]:
        caller = self._caller
        if not again:
            room = self._room(range_)
            if room == 0:
                return self._spent()
            range_ = range_ if room is None else range_.cut(room)
        rows = range_.rows
        self._range, self._is_again = range_, again
        self._keys = row_keys(caller.asker, self.unit.journal.id, rows, 0, len(rows))
        self._answers = RowAnswers(self.asking.prompt, caller.passing.dicts(rows.batch))
        hopeless = self._answers.hopeless()
        self._answers.unfit |= hopeless
        self._answers.refused |= hopeless.keys()
        if hopeless and caller.options.on_error == "fail":
            return self._failed(next(iter(hopeless.values())).complaint)
        take = self._machine.on_rows_again if again else self._machine.on_rows
        offsets: Sequence[int] = rows.offsets.tolist()
        return take(offsets, range_.next, now_us(), frozenset(hopeless))

    # The budget.
    def _room(self, range_: CallRange) -> int | None:
        """How many of these rows may be asked for; None if nothing limits them."""
        if self._caller.options.budget is None or not len(range_.rows):
            return None
        dicts = self._caller.passing.dicts(range_.rows.slice(0, GUESSED_ROWS).batch)
        self._guess = RowAnswers(self.asking.prompt, dicts).guess()
        return self._wallet.room(self._totals, self._guess)

    def _reserve(self, record: BatchRecord) -> TurnEnd | None:
        """Take what a batch may cost from the budget; how the turn ends if there is too little."""
        if self._caller.options.budget is None:
            return None
        owed = self._owed(self._published)
        if self._guess is None:
            self._guess = self._answers.guess()
        if self._wallet.room(owed, self._guess) == 0:
            return TurnEnd.SPENT
        unchanged = UnitPublish(next=self._publisher.at)
        # New rows are as many as there was room for. If others were faster they are fewer.
        room_min = record.rows if record.attempt == 1 and not self._is_again else 1
        is_reserved = self._wallet.publish(
            unchanged, self._totals, owed, record.rows, room_min=room_min
        )
        return None if is_reserved else TurnEnd.OVER

    def _owed(self, begin: int) -> Totals:
        """The totals with what answers for rows from an index on have cost."""
        owed = self._totals
        for index, several in self._answers.spent.items():
            for noted in several if index >= begin else ():
                owed = owed.plus(calls=1).spent(noted.spend)
        return owed

    def _spent(self) -> list[BatchAction]:
        event = self.unit.notes.event(
            now_us(), JobEventKind.SPENT, self._caller.step.name, **{ALONE: True}
        )
        self._publisher.publish(UnitPublish(next=self._publisher.at, events=(event,)), "settle")
        return [EndBatchTurn(TurnEnd.SPENT)]

    def _record(self, record: BatchRecord) -> None:
        if not self._has_record:
            self._book.begin()
            self._has_record = True
        fault(f"batch.{record.kind.value}.before")
        self._book.append(record)
        fault(f"batch.{record.kind.value}.after")
        self._batch = record.batch

    # The provider.
    def _ask(
        self, action: FindBatch | MakeBatch | LookAtBatch | FetchResults, calls: BatchCalls
    ) -> list[BatchAction]:
        """Ask the provider. One that cannot be reached, or is busy, is asked in a later run."""
        machine = self._machine
        try:
            match action:
                case MakeBatch():
                    return self._make(action, calls)
                case FindBatch(record):
                    since_s = record.since_us / 1_000_000
                    found = calls.find(record.key, self._keys, record.rows, since_s, record.earlier)
                    is_sure = not isinstance(found, NotSure)
                    name = found if isinstance(found, str) else None
                    return machine.on_found(name, now_us(), is_sure=is_sure)
                case LookAtBatch(name):
                    self._batch = name
                    seen = calls.look(name)
                    return machine.on_looked(seen.state, seen.text, now_us())
                case FetchResults(names):
                    index = {key: place for place, key in enumerate(self._keys)}
                    for name in names:
                        for key, reply in calls.results(name):
                            if key in index:
                                self._answers.add(index[key], reply)
                    fault("batch.results.after")
                    return machine.on_results(self._answers.fates(), now_us())
        except RequestFailed as failed:
            if failed.why in ("not allowed", "refused"):
                return self._failed(str(failed))
            _LOG.info("step %s: %s", self._caller.step.name, failed)
            return [EndBatchTurn(TurnEnd.WAITING)]

    def _make(self, action: MakeBatch, calls: BatchCalls) -> list[BatchAction]:
        machine, record = self._machine, action.record
        settle_us = 1000 * ms(self.unit.config.job_batch_settle)
        if now_us() - record.at_us > settle_us // 2:
            return machine.on_unknown()  # Others may make it by now: this process was held up.

        def requests() -> Iterator[tuple[str, dict[str, Any]]]:
            for index in action.rows:
                yield self._keys[index], self._answers.body(index)

        try:
            fault("batch.make.before")
            name = calls.make(record.key, requests)
            fault("batch.make.after")
        except RequestFailed as failed:
            if failed.why in ("not allowed", "refused"):
                return machine.on_not_made(str(failed), now_us())
            _LOG.info("step %s: %s", self._caller.step.name, failed)
            return machine.on_unknown()
        _LOG.info("step %s: batch %s of %d questions", self._caller.step.name, name, record.rows)
        return machine.on_made(name, now_us())

    # Results.
    def _publish(self, end: int) -> None:
        """Publish rows up to an index, each with its answer or its dead letter."""
        assert self._range is not None, "rows were read"
        rows, answers, step = self._range.rows, self._answers, self._caller.step
        begin, options = self._published, self._caller.options
        indexes = range(begin, end)
        made = [answers.made[index] for index in indexes if index in answers.made]
        left_out = [self._failure(index) for index in indexes if index not in answers.made]
        is_dead = options.on_error == "dead_letter"
        next_ = self._range.next if end == len(rows) else int(rows.offsets[end])
        notes = self.unit.notes
        letters = [notes.letter(now_us(), step, rows, f) for f in left_out if is_dead]
        charges = [
            notes.charge(
                at_us=now_us(),
                offset=int(rows.offsets[index]),
                attempt=1,
                noted=noted,
                seconds=0.0,
                failure=None,
            )
            for index in indexes
            for noted in answers.spent.get(index, ())
        ]
        for charge in charges:
            self._totals = self._totals.spent(charge.noted.spend)
        self._totals = self._totals.plus(
            calls=len(indexes),
            errors=len(left_out),
            skipped=len(left_out),
            dead_letters=len(letters),
        )
        change = UnitPublish(
            next=next_,
            outputs=(self._caller.to_batch(made),) if made else (),
            charges=tuple(charges),
            letters={
                **self._range.letters_below(next_),
                **({step.name: tuple(letters)} if letters else {}),
            },
        )
        open_rows = sum(index not in answers.made for index in range(end, len(rows)))
        self._wallet.publish(change, self._totals, self._owed(end), open_rows)
        self._count(len(indexes), len(made))
        self._published = end

    def _count(self, rows_in: int, rows_out: int) -> None:
        tally, step = self.unit.tally, self._caller.step.name
        tally.add(tally.calls, step, rows_in)
        tally.add(tally.rows_in, step, rows_in)
        tally.add(tally.rows_out, step, rows_out)

    def _failure(self, index: int) -> Failure:
        unfit = self._answers.unfit.get(index)
        error = "the provider gave no answer in any batch" if unfit is None else unfit.complaint
        kind = "NoAnswer"
        if unfit is not None:
            kind = "AnswerUnusable" if unfit.answer else "QuestionRefused"
            error += f"\n  answer: {unfit.answer}" if unfit.answer else ""
        return Failure(place=index, error=error, traceback="", kind=kind)

    def _give_up(self, record: BatchRecord, error: str, row: int) -> list[BatchAction]:
        assert self._range is not None, "rows were read"
        offsets = self._range.rows.offsets
        offset = int(offsets[row]) if row < len(offsets) else self._publisher.at
        failure = self._failure(row)
        if error:
            failure = replace(failure, error=error)
        event = self.unit.notes.failed(now_us(), self._caller.step.name, offset, failure)
        self._book.append(record, [event])
        return [EndBatchTurn(TurnEnd.FAILED)]

    def _failed(self, error: str) -> list[BatchAction]:
        failure = Failure(place=0, error=error, traceback="")
        at = self._publisher.at
        event = self.unit.notes.failed(now_us(), self._caller.step.name, at, failure)
        self._publisher.publish(UnitPublish(next=at, events=(event,)), "settle")
        return [EndBatchTurn(TurnEnd.FAILED)]
