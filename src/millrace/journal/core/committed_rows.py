"""Which rows of a journal are committed. Pure.

A reader with one offset per journal cannot skip a row and come back for it. So reads return
committed rows in journal order up to the stable end: the first row of the earliest open
transaction. Rolled-back rows and ACKs are left out. A raw read returns every stored row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core import sequencing
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_format import CLOCK, FLAG, OFFSET, PRODUCER, Flag, ProducerId
from millrace.journal.core.sequencing import RowStamps

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RolledBackRange:
    """A transaction that was rolled back: this producer's CONTINUE rows in [begin, end)."""

    producer: ProducerId
    begin: Offset
    end: Offset


def stamps_of(rows: pa.RecordBatch) -> RowStamps:
    """The system fields of stored rows, as arrays."""
    return RowStamps(
        offsets=rows[OFFSET].to_numpy(),
        producers=rows[PRODUCER].to_numpy(),
        clocks=rows[CLOCK].to_numpy(),
        flags=rows[FLAG].to_numpy(),
    )


def committed_mask(stamps: RowStamps, rolled_back: Iterable[RolledBackRange]) -> Mask:
    """Which stored rows below the stable end are committed, if duplicates were never stored."""
    mask: Mask = stamps.flags != Flag.ACK
    for gone in rolled_back:
        within = (stamps.offsets >= gone.begin) & (stamps.offsets < gone.end)
        mask &= ~(within & (stamps.producers == gone.producer) & (stamps.flags == Flag.CONTINUE))
    return mask


def stable_end(states: Iterable[sequencing.Sequence], end: Offset) -> Offset:
    """Up to where every row is decided: the earliest begin of an open transaction, or the end."""
    return min([end, *(state.open.begin for state in states if state.open is not None)])
