"""Mistakes planted into the machines, to see that the simulation finds each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from millrace.journal.core.values import Publish
from millrace.reads.model import governor
from millrace.reads.model.checkpoint import Checkpoint, RolledBack, merge
from millrace.reads.model.flush import FlushCycle
from millrace.reads.model.frontier import Frontier
from millrace.reads.model.routing import Routing
from millrace.reads.model.sequence import RowOutcomes, Sequences, Stamped
from millrace.reads.model.slice_progress import Hints
from millrace.reads.model.tags import bindings_of
from millrace.reads.model.unmet_hints import UnmetHints
from millrace.reads.queue import row_order
from millrace.reads.session import checkpoint_store
from millrace.reads.session.session_actor import SessionActor
from millrace.reads.session.session_state import StoreCommit
from millrace.reads.slice.flush_report import Gathering
from millrace.reads.slice.slice_state import SliceState


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, how it gets in, and within how many seeds it is found."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    seeds: int


def _lost_hint(patch: pytest.MonkeyPatch) -> None:
    add = Gathering.add

    def lossy(self: Gathering, rows: Stamped, done: RowOutcomes, _: Hints, hinted: Any) -> None:  # noqa: ANN401
        add(self, rows, done, Hints.empty(), hinted)

    patch.setattr(Gathering, "add", lossy)


def _frontier_ahead(patch: pytest.MonkeyPatch) -> None:
    bounds = UnmetHints.bounds

    def beyond(self: UnmetHints, count: int, without: np.uint64) -> Any:  # noqa: ANN401
        found = bounds(self, count, without)
        return np.where(found == without, found, found + np.uint64(1))

    patch.setattr(UnmetHints, "bounds", beyond)


def _flush_told_early(patch: pytest.MonkeyPatch) -> None:
    on_flushed = FlushCycle.on_flushed

    def at_the_first(self: FlushCycle, queue: int, cycle: int) -> bool:
        is_first = len(self._awaited) == self._queues
        on_flushed(self, queue, cycle)
        return is_first

    patch.setattr(FlushCycle, "on_flushed", at_the_first)


def _rollback_forgotten(patch: pytest.MonkeyPatch) -> None:
    add = Gathering.add

    def forgetful(
        self: Gathering,
        rows: Stamped,
        done: RowOutcomes,
        hints: Hints,
        hinted: Any,  # noqa: ANN401
    ) -> None:
        add(self, rows, replace(done, rolled_back=RolledBack.empty()), hints, hinted)

    patch.setattr(Gathering, "add", forgetful)


def _delay_blocks(patch: pytest.MonkeyPatch) -> None:
    def next_rows(self: governor.Governor, now: int) -> governor.ReadyRows:
        for priority in sorted(self._classes, reverse=True):
            of = self._classes[priority]
            holding = of.holding(now)
            found = governor.ReadyRows(governor._take_ready(of, holding, now))
            if len(found):
                return found
            if len(holding) or of.parts:
                break
        return governor.ReadyRows([])

    patch.setattr(governor.Governor, "next_rows", next_rows)


def _delay_ignored(patch: pytest.MonkeyPatch) -> None:
    start = governor.Governor.start

    def at_once(self: governor.Governor, tags: Any, priority: int, **_: bool) -> None:  # noqa: ANN401
        start(self, tags, priority, is_delayed=False)

    patch.setattr(governor.Governor, "start", at_once)


def _duplicate_kept(patch: pytest.MonkeyPatch) -> None:
    take = Sequences.take

    def keeping(self: Sequences, rows: Stamped, pairs: Any = None) -> RowOutcomes:  # noqa: ANN401
        return replace(take(self, rows, pairs), keep=rows.flags != 2)

    patch.setattr(Sequences, "take", keeping)


def _hint_cleared_elsewhere(patch: pytest.MonkeyPatch) -> None:
    apply = Frontier.apply

    def hasty(self: Frontier, *args: Any) -> None:  # noqa: ANN401
        apply(self, *args)
        tags, producers = self._pairs.firsts, self._pairs.producers
        cohorts = self._cohorts[bindings_of(tags)]
        committed = self._per_pair.committed[: len(tags)]
        waits = self._waiting._joined()
        keep = np.ones(len(waits), np.bool_)
        for place, (source, clock) in enumerate(zip(waits.source, waits.clock, strict=True)):
            alike = (producers == producers[source]) & (cohorts == cohorts[source])
            keep[place] = not (alike & (committed > clock)).any()
        self._waiting._keep(keep)

    patch.setattr(Frontier, "apply", hasty)


def _delta_merged_wrongly(patch: pytest.MonkeyPatch) -> None:

    def lower_wins(*parts: Checkpoint) -> Checkpoint:
        turned = [
            replace(
                each,
                shown=replace(each.shown, number=-each.shown.number),
                reads=replace(each.reads, number=-each.reads.number),
            )
            for each in parts
        ]
        found = merge(*turned)
        return replace(
            found,
            shown=replace(found.shown, number=-found.shown.number),
            reads=replace(found.reads, number=-found.reads.number),
        )

    patch.setattr(checkpoint_store, "merge", lower_wins)


def _not_fenced(patch: pytest.MonkeyPatch) -> None:
    def publish(**given: Any) -> Publish:  # noqa: ANN401
        return Publish(**{**given, "lease": None})

    patch.setattr(checkpoint_store, "Publish", publish)


def _floor_too_high(patch: pytest.MonkeyPatch) -> None:
    commit = SessionActor._commit

    def at_end(self: SessionActor, wanted: StoreCommit) -> None:
        end = self._broker.end_offset
        floors = [
            replace(floor, offset=end(floor.name, isolation="raw")) for floor in wanted.floors
        ]
        commit(self, replace(wanted, floors=tuple(floors)))

    patch.setattr(SessionActor, "_commit", at_end)


def _wrong_member(patch: pytest.MonkeyPatch) -> None:
    owners = Routing.owners

    def next_one(self: Routing, binding: int, rows: pa.RecordBatch) -> Any:  # noqa: ANN401
        return (owners(self, binding, rows) + 1) % len(self._ends)

    patch.setattr(Routing, "owners", next_one)


def _out_of_order(patch: pytest.MonkeyPatch) -> None:
    def as_they_lie(pieces: Iterable[row_order.VisibleBlock], *_: Any) -> Any:  # noqa: ANN401
        return (batch for batch in (piece.load() for piece in pieces) if batch.num_rows)

    patch.setattr(row_order, "in_order", as_they_lie)


def _open_begin_forgotten(patch: pytest.MonkeyPatch) -> None:
    def none(self: Sequences, pairs: Any) -> Any:  # noqa: ANN401
        return np.full(len(pairs), -1, np.int64) + 0 * self._begin[pairs]

    patch.setattr(Sequences, "open_begins", none)


def _never_continued(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SliceState, "_continue", lambda _: None)


MISTAKES: Final = (
    Mistake("a lost hint", _lost_hint, 60),
    Mistake("a frontier that runs ahead", _frontier_ahead, 60),
    Mistake("a flush told early", _flush_told_early, 60),
    Mistake("a rollback forgotten", _rollback_forgotten, 60),
    Mistake("a delayed row that blocks", _delay_blocks, 60),
    Mistake("a delay ignored", _delay_ignored, 60),
    Mistake("a duplicate kept", _duplicate_kept, 60),
    Mistake("a hint cleared by a later clock elsewhere", _hint_cleared_elsewhere, 100),
    Mistake("a delta merged wrongly", _delta_merged_wrongly, 60),
    Mistake("a zombie that is not fenced", _not_fenced, 60),
    Mistake("a floor that is too high", _floor_too_high, 60),
    Mistake("a row at another member", _wrong_member, 60),
    Mistake("rows out of order", _out_of_order, 60),
    Mistake("an open transaction forgotten", _open_begin_forgotten, 60),
    Mistake("reads that do not go on after a replay", _never_continued, 60),
)
