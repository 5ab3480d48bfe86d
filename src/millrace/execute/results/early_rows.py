"""The rows of an answer before its query is done: outputs of the last stage as they finish.

Invariant: outputs are handed out in order, each once, and only whole ones. An output that was
handed out is part of the answer: where the query ends with others in its place, reading ends with
an error. When the reader ends early, the query is cancelled; its finished tasks are kept.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import pyarrow as pa

from millrace.execute.lost_outputs import LOSSES
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_run import shuffle_of
from millrace.execute.stage_scheduler import Cancelled
from millrace.execute.stage_tasks import StageRun
from millrace.execute.tasks.task_results import Result
from millrace.faults import fault
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.reports import StageReport
from millrace.wakeup import WorkerThread, still_running

_LOOK_S: Final = 5.0
_LOG: Final = logging.getLogger(__name__)


class AnsweringQuery(Protocol):
    """A query that tells `EarlyRows` of its last stage."""

    def finish(self) -> Shuffle:
        """Run all stages."""

    def batches(self, handed_out: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of the answer behind outputs that were handed out."""


class EarlyRows:
    """Reads finished outputs of the last stage while a thread runs the query."""

    def __init__(self, workspace: ShuffleWorkspace) -> None:
        self._workspace = workspace
        self._changed = threading.Condition()
        self._work: StageRun | None = None
        self._is_over = self._is_stopped = False
        self._error: BaseException | None = None
        self.handed_out: list[str] = []
        """Of each output that was begun to be handed out, what its content is."""

    def check(self) -> None:
        """Raise if the reader has ended."""
        if self._is_stopped:
            raise Cancelled

    def on_work(self, work: StageRun) -> None:
        """The last stage is about to run, for the first time or again."""
        with self._changed:
            self._work = work
            work.in_order, work.on_results = True, self._wake
            self._changed.notify_all()

    def read(self, run: AnsweringQuery) -> Iterator[pa.RecordBatch]:
        """Start the query, and give all its rows."""
        context = contextvars.copy_context()
        thread = WorkerThread(lambda: context.run(self._run, run.finish), "millrace-query")
        thread.start()
        try:
            yield from self._early()
            while not thread.ended.wait(_LOOK_S):
                pass
            if self._error is not None:
                raise self._error
            yield from run.batches(self.handed_out)
        finally:
            self._is_stopped = True
            if still_running([thread], self._workspace.config.thread_stop_ms_max):
                _LOG.warning("a query whose reader ended is still being cancelled")

    def _run(self, finish: Callable[[], Shuffle]) -> None:
        try:
            finish()
        except BaseException as error:  # noqa: BLE001 - raised in the reader's thread
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _early(self) -> Iterator[pa.RecordBatch]:
        while (found := self._next()) is not None:
            work, result = found
            alone = shuffle_of(
                self._workspace, work.stage, [result], StageReport(), choices=work.choices
            )
            try:
                for _, rows in alone.outputs(0):
                    # Noted before the first row: planning again has to know.
                    self.handed_out.append(result.index.content_checksum())
                    yield from rows
                    break
                else:
                    self.handed_out.append(result.index.content_checksum())
            except LOSSES as error:
                _LOG.info("an output is lost before it was read, and made again: %s", error)
                return
            fault("dataset.driver.after_early_output")

    def _next(self) -> tuple[StageRun, Result] | None:
        """The next output as soon as it is finished; None once nothing can be read early."""
        seen: StageRun | None = None
        with self._changed:
            while not self._is_over:
                work, count = self._work, len(self.handed_out)
                if work is not None:
                    if work is not seen and not self._goes_on(work):
                        return None
                    seen = work
                    if count == len(work.tasks):
                        return None
                    result = work.results.get(work.tasks[count].map_task)
                    if result is not None:
                        # Others are found by their agents once the stage is decided.
                        return (work, result) if result.folder is None else None
                self._changed.wait(_LOOK_S)
        return None

    def _goes_on(self, work: StageRun) -> bool:
        """Whether what was handed out can still be the begin of the answer."""
        results = [work.results.get(task.map_task) for task in work.tasks[: len(self.handed_out)]]
        return all(
            result is None or result.index.content_checksum() == content
            for result, content in zip(results, self.handed_out, strict=False)
        )

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
