"""Which member a row belongs to. Pure.

Members tile the 32-bit key space. A row's place in it is the hash of its key, or, for bindings
without one, its rotated clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.journal.core.row_format import CLOCK
from millrace.keys.key_ranges import tile
from millrace.keys.rotated_clock import rotated_clock
from millrace.keys.spark_hash import hash_rows
from millrace.reads.model.coordinated_read import CoordinatedRead

Owners = npt.NDArray[np.uint16]
Extract = Callable[[pa.RecordBatch, Sequence[str]], pa.Table]
"""Gives the values at JSON pointers of documents, one column a pointer."""


class Routing:
    """Knows the members' ranges and the bindings' keys."""

    def __init__(self, read: CoordinatedRead, members: int, extract: Extract | None = None) -> None:
        self._bindings = read.bindings
        self._ends = np.array([key_range.end for key_range in tile(members)], np.uint32)
        self._extract = extract

    def owners(self, binding: int, rows: pa.RecordBatch) -> Owners:
        """The member of each stored row. ACKs have none; the value there has no meaning."""
        if len(self._ends) == 1:
            return np.zeros(rows.num_rows, np.uint16)
        places = self.places(binding, rows)
        owners: Owners = np.searchsorted(self._ends, places, side="left").astype(np.uint16)
        return owners

    def places(self, binding: int, rows: pa.RecordBatch) -> npt.NDArray[np.uint32]:
        """The position of each row in the key space."""
        key = self._bindings[binding].key
        if not key:
            rotated: npt.NDArray[np.uint32] = rotated_clock(rows[CLOCK].to_numpy())
            return rotated
        keyed: pa.RecordBatch | pa.Table = rows
        if key[0].startswith("/"):
            assert self._extract is not None, "JSON pointers need an extractor"
            keyed = self._extract(rows, key)
            key = keyed.column_names
        places: npt.NDArray[np.uint32] = hash_rows(keyed, tuple(key)).view(np.uint32)
        return places
