"""What a row does to its producer's transaction in one journal. Pure.

A producer's rows in a journal carry increasing clocks. OUTSIDE rows commit themselves, CONTINUE
rows wait for an ACK, and an ACK commits what is open, or rolls it back if its clock is at or below
the last commit. `outcome` is the whole table, for one row; `sequence_rows` is the same for batches.

Invariant: a row at or below the last commit, or at or below the highest open clock, is a duplicate;
duplicates are looked for before errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.journal.core.clocks import BEFORE_ALL, Clock
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import Flag, ProducerId

Ints = npt.NDArray[np.int64]
Clocks = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


class RowEffect(IntEnum):
    """What a row does."""

    COMMITS_ITSELF = 0
    BEGINS = 1
    EXTENDS = 2
    COMMITS = 3
    COMMITS_NOTHING = 4
    ROLLS_BACK = 5
    DUPLICATE = 6
    INTERRUPTS = 7
    """An error: a self-committing row within an open transaction."""
    COMMITS_HALF = 8
    """An error: an ACK between the first and the last row of the open transaction."""


ERRORS: Final = (RowEffect.INTERRUPTS, RowEffect.COMMITS_HALF)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that was begun and not ended: its first offset, its highest clock so far."""

    begin: Offset
    highest: Clock


@dataclass(frozen=True, slots=True)
class Sequence:
    """The state of a producer in one journal."""

    last_commit: Clock = BEFORE_ALL
    open: OpenTransaction | None = None


def outcome(flag: Flag, clock: Clock, state: Sequence) -> RowEffect:
    """What the next row of a producer does: the table, for one row."""
    last, pending = state.last_commit, state.open
    if flag is Flag.ACK:
        if pending is None:
            return RowEffect.DUPLICATE if clock <= last else RowEffect.COMMITS_NOTHING
        if clock <= last:
            return RowEffect.ROLLS_BACK
        return RowEffect.COMMITS if clock >= pending.highest else RowEffect.COMMITS_HALF
    if clock <= last or (pending is not None and clock <= pending.highest):
        return RowEffect.DUPLICATE
    if flag is Flag.OUTSIDE:
        return RowEffect.COMMITS_ITSELF if pending is None else RowEffect.INTERRUPTS
    return RowEffect.BEGINS if pending is None else RowEffect.EXTENDS


def advance(state: Sequence, done: RowEffect, clock: Clock, offset: Offset) -> Sequence:
    """The state of the producer after a row."""
    match done:
        case RowEffect.COMMITS_ITSELF | RowEffect.COMMITS | RowEffect.COMMITS_NOTHING:
            return Sequence(clock)
        case RowEffect.BEGINS:
            return Sequence(state.last_commit, OpenTransaction(offset, clock))
        case RowEffect.EXTENDS:
            assert state.open is not None
            return Sequence(state.last_commit, OpenTransaction(state.open.begin, clock))
        case RowEffect.ROLLS_BACK:
            return Sequence(state.last_commit)
        case _:
            return state


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStamps:
    """The system fields of some rows of one journal, in order, as arrays."""

    offsets: Ints
    producers: Ints
    clocks: Clocks
    flags: Bytes


@dataclass(frozen=True, slots=True)
class Sequenced:
    """What each row does, and the state of each of their producers afterwards."""

    outcomes: Bytes
    states: dict[ProducerId, Sequence]


def sequence_rows(stamps: RowStamps, states: Mapping[ProducerId, Sequence]) -> Sequenced:
    """Sequence rows in journal order. An erroneous row changes nothing; its outcome says so."""
    outcomes = np.empty(len(stamps.offsets), np.uint8)
    after: dict[ProducerId, Sequence] = {}
    for producer, rows in _by_producer(stamps.producers):
        before = states.get(producer, Sequence())
        done = _whole_run(stamps, rows, before)
        if done is None:
            done = _row_by_row(stamps, rows, before)
        outcomes[rows], after[producer] = done
    return Sequenced(outcomes, after)


def _by_producer(producers: Ints) -> list[tuple[ProducerId, Ints]]:
    """Places of each producer's rows, in order."""
    if not len(producers):
        return []
    if (producers == producers[0]).all():
        return [(ProducerId(int(producers[0])), np.arange(len(producers)))]
    order = np.argsort(producers, kind="stable")
    cuts = np.flatnonzero(np.diff(producers[order])) + 1
    return [(ProducerId(int(producers[rows[0]])), rows) for rows in np.split(order, cuts)]


def _whole_run(stamps: RowStamps, rows: Ints, before: Sequence) -> tuple[Bytes, Sequence] | None:
    """Rows of one kind with rising clocks, taken at once; None if they are not that plain."""
    clocks, flags = stamps.clocks[rows], stamps.flags[rows]
    flag = Flag(int(flags[0]))
    first, last = Clock(int(clocks[0])), Clock(int(clocks[-1]))
    if flag is Flag.ACK or (flags != flag).any() or (clocks[1:] <= clocks[:-1]).any():
        return None
    if first <= before.last_commit:
        return None
    if flag is Flag.OUTSIDE:
        if before.open is not None:
            return None
        return np.full(len(rows), RowEffect.COMMITS_ITSELF, np.uint8), Sequence(last)
    if before.open is not None and first <= before.open.highest:
        return None
    done = np.full(len(rows), RowEffect.EXTENDS, np.uint8)
    begin = Offset(int(stamps.offsets[rows[0]]))
    if before.open is None:
        done[0] = RowEffect.BEGINS
    else:
        begin = before.open.begin
    return done, Sequence(before.last_commit, OpenTransaction(begin, last))


def _row_by_row(stamps: RowStamps, rows: Ints, state: Sequence) -> tuple[Bytes, Sequence]:
    done = np.empty(len(rows), np.uint8)
    columns = (stamps.offsets[rows], stamps.clocks[rows], stamps.flags[rows])
    values = zip(*(column.tolist() for column in columns), strict=True)
    for row, (offset, clock, flag) in enumerate(values):
        result = outcome(Flag(flag), Clock(clock), state)
        state = advance(state, result, Clock(clock), Offset(offset))
        done[row] = result
    return done, state
