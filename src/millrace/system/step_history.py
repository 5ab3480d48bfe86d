"""How the rows of a job's steps came over time, from the times of the rows that they made.

So a run that was killed has a history too: what ended in order is not needed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from millrace.journal.core.clocks import Clock, unix_ns_of
from millrace.journal.core.row_format import CLOCK
from millrace.pipeline.core import hops
from millrace.pipeline.core.job_record import JobPart
from millrace.system.job_reading import SeenJob

_POINTS: Final = 40
_READS_MAX: Final = 256
_READS_EACH: Final = 12
_JOURNALS_MAX: Final = 64

Samples = list[tuple[float, list[int]]]
"""Seconds since a begin, and the rows of each step by then."""


def rows_over_time(job: SeenJob, begin_us: int, until_us: int) -> tuple[list[str], Samples]:
    """How many rows each step had made, at some moments of a time; of steps that keep rows.

    Times of some rows of each journal are read, and between them rows are taken to come evenly.
    """
    parts = [part for part in job.record.hops if job.record.output_of(part) is not None]
    seconds = max(0.0, (until_us - begin_us) / 1e6)
    grid = np.linspace(0.0, seconds, _POINTS)
    made = [_made(job, part, begin_us, grid, _READS_MAX // max(1, len(parts))) for part in parts]
    samples = [
        (float(at), [round(float(rows[point])) for rows in made]) for point, at in enumerate(grid)
    ]
    return [part.name for part in parts], samples


def _made(
    job: SeenJob, part: JobPart, begin_us: int, grid: np.ndarray, reads_max: int
) -> np.ndarray:
    """The rows that a step had made at each of these seconds."""
    prefix = job.record.output_of(part)
    names = [info.name for info in job.journals.list(prefix or "")]
    # Of very many journals some stand for all: keys are spread evenly.
    chosen = names[:: -(-len(names) // _JOURNALS_MAX) or 1]
    total = np.zeros_like(grid)
    for name in chosen:
        total += _in_journal(job, name, begin_us, grid, max(3, reads_max // len(chosen)))
    return total * (len(names) / len(chosen)) if chosen else total


def _in_journal(job: SeenJob, name: str, begin_us: int, grid: np.ndarray, reads: int) -> np.ndarray:
    # Of a group that never commits, the backlog is the number of rows: offsets count ACKs too.
    (whole,) = job.journals.positions([(f"{hops.ROOT}/{job.record.job}", name)])
    start, end = int(whole.start), int(whole.end)
    if end <= start or not whole.backlog:
        return np.zeros_like(grid)
    times, counts = [], []
    for offset in np.unique(np.linspace(start, end - 1, min(reads, _READS_EACH)).astype(np.int64)):
        stored = job.journals.read(name, int(offset), rows_max=1).stored()
        if stored.num_rows and stored[CLOCK][0].as_py():
            at_us = unix_ns_of(Clock(stored[CLOCK][0].as_py())) / 1000
            times.append((at_us - begin_us) / 1e6)
            counts.append(float(offset + 1 - start) * whole.backlog / (end - start))
    if not times:
        return np.zeros_like(grid)
    # The last offset may be an ACK's, which has no time of its own.
    counts[-1] = float(whole.backlog)
    # Clocks of several producers may be a little apart.
    ordered = np.maximum.accumulate(np.array(times))
    made: np.ndarray = np.interp(grid, ordered, counts, left=0.0)
    return made
