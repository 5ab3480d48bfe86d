"""Makes the calls of an engine: rows go in by `submit` while others are in it, results by `poll`.

Everything runs in the worker's own thread, as engines ask for. The engine is never drained: a slot
that is free takes the next recorded call before the next `poll`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millrace.errors import SchemaMismatch
from millrace.pipeline.calling.call_pool import CallPool
from millrace.pipeline.calling.call_thread import CallTimedOut
from millrace.pipeline.core.call_window import SlidingCall
from millrace.pipeline.define.context import Context

ENGINE_POLL_S: Final = 0.001
"""A `poll` that found nothing and took less than this is followed by a wait as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedCall:
    """A call that an engine has."""

    call: SlidingCall
    slot: int
    begun: object
    context: Context
    began: float


class EnginePool(CallPool):
    """The calls of one turn, made by an engine."""

    def run(self) -> None:
        """Make calls until `close`."""
        self._submitted: dict[str, SubmittedCall] = {}
        self._free = list(range(self._concurrency))
        while self._fill():
            began = time.perf_counter()
            is_found = self._poll()
            self._give_up_late(time.perf_counter())
            took_s = time.perf_counter() - began
            if not is_found and took_s < ENGINE_POLL_S:
                with self._changed:
                    self._changed.wait(ENGINE_POLL_S)

    def _fill(self) -> bool:
        """Submit calls to all free slots; waits for one if none is in the engine.

        False at the end.
        """
        while self._free:
            call = self._take(waits=not self._submitted)
            if call is None:
                return bool(self._submitted)
            self._submit(call)
        return True

    def _submit(self, call: SlidingCall) -> None:
        slot = self._free.pop()
        begun, context = self._begin(slot, call)
        submitted = SubmittedCall(
            call=call, slot=slot, begun=begun, context=context, began=time.perf_counter()
        )
        key = context.key
        self._submitted[key] = submitted
        try:
            (row,) = self._caller.passing.dicts(call.rows.batch)
            self._caller.function.submit(key, row, context)
        except BaseException as error:  # noqa: BLE001 - an outcome of the call
            self._fail(key, error)

    def _poll(self) -> bool:
        """Keep each result that is there before the next is asked for; whether there was any."""
        is_found = False
        finished: Iterator[tuple[str, object]] | None = None
        while True:
            try:
                if finished is None:
                    finished = iter(self._caller.function.poll())
                key, result = next(finished)
                self._check(key)
            except StopIteration:
                return is_found
            except BaseException as error:  # noqa: BLE001 - an outcome of all calls that it has
                for key in list(self._submitted):
                    self._fail(key, error)
                return True
            is_found = True
            self._finish(key, result)

    def _finish(self, key: str, result: object) -> None:
        submitted = self._submitted[key]
        if isinstance(result, BaseException):
            self._fail(key, result)
            return
        try:
            rows = self._caller.function.rows_of(result)
            made = self._caller.to_batch(rows) if rows else None
        except BaseException as error:  # noqa: BLE001 - an outcome of the call
            self._fail(key, error)
            return
        outcome = self._returned(submitted.call, submitted.context, submitted.began, made)
        self._leave(key)
        self._ended(submitted.slot, submitted.begun, submitted.call, outcome)

    def _fail(self, key: str, error: BaseException) -> None:
        submitted = self._leave(key)
        outcome = self._raised(
            self._caller, submitted.call, submitted.context, submitted.began, error
        )
        self._ended(submitted.slot, submitted.begun, submitted.call, outcome)

    def _leave(self, key: str) -> SubmittedCall:
        submitted = self._submitted.pop(key)
        self._free.append(submitted.slot)
        return submitted

    def _give_up_late(self, now: float) -> None:
        """Let the engine give up rows that are in it for too long."""
        limit_s = self._caller.options.timeout
        while limit_s is not None and self._submitted:
            key, oldest = next(iter(self._submitted.items()))
            if now - oldest.began < limit_s:
                return
            error: BaseException = CallTimedOut(
                f"{self._caller.step.calling.name} did not finish the row in {limit_s:g} s\n"
                "  to fix: raise timeout=, or lower concurrency="
            )
            try:
                self._caller.function.abort(key)
            except BaseException as raised:  # noqa: BLE001 - an outcome of the call
                error = raised
            self._fail(key, error)

    def _check(self, key: object) -> None:
        if key not in self._submitted:
            raise SchemaMismatch(
                f"{self._caller.step.calling.name}.poll gave a result for {key!r}\n"
                f"  found: no row with this key is in it; there are {len(self._submitted)}\n"
                "  to fix: give the key that submit was given, once"
            )
