"""The catalog of journals on its way to the slices. Pure.

Every slice gets the whole catalog whenever a journal is made. Journals of a binding mostly have
numbers that follow each other, so a catalog of a million journals is a few bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from millrace.journal.core.journal_names import JournalId
from millrace.journal.core.number_ranges import Int64
from millrace.reads.model.coordinated_read import CohortNumber
from millrace.reads.model.journal_catalog import JournalCatalog, ids_of
from millrace.reads.model.tags import Ints
from millrace.transport.flight.wire import wrong

_JOURNALS_MAX: Final = 2**27


class CatalogFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A catalog as it is sent: of each binding the runs of its journals."""

    cohorts: tuple[Int64, ...]
    runs: tuple[pa.Array, ...]
    highest: Int64


def write_catalog(catalog: JournalCatalog) -> CatalogFields:
    """As it is sent."""
    runs = tuple(write_ints(runs) for runs in catalog.runs)
    return CatalogFields(tuple(catalog.cohorts), runs, catalog.highest)


def read_catalog(sent: CatalogFields) -> JournalCatalog:
    """As it was; runs that are not in order are refused."""
    cohorts = tuple(map(CohortNumber, sent.cohorts))
    return JournalCatalog(cohorts, tuple(map(_read_runs, sent.runs)), JournalId(sent.highest))


def write_ints(numbers: Ints) -> pa.Array:
    """Whole numbers as they are sent."""
    return pa.array(numbers, pa.int64())


def read_ints(numbers: pa.Array) -> Ints:
    """As they were; others are refused."""
    if numbers.type != pa.int64() or numbers.null_count:
        raise wrong("whole numbers", numbers.type)
    return np.asarray(numbers.to_numpy(), np.int64)


def _read_runs(sent: pa.Array) -> Ints:
    runs = read_ints(sent)
    is_sound = len(runs) % 2 == 0 and (runs >= 0).all() and (np.diff(runs) > 0).all()
    if not is_sound or (runs[1::2] - runs[::2]).sum() > _JOURNALS_MAX:
        raise wrong("runs of journals", runs)
    return ids_of(runs)
