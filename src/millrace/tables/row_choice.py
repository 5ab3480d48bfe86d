"""How rows that a commit takes out of a table are chosen. Pure; the query engine is behind it.

Invariant: a file that is not among the possible ones has no row that is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class RowChoice(Protocol):
    """Chooses rows of the files of a table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""

    def possible(self, bounds: pa.Table) -> Collection[str]:
        """The paths of files that can have a chosen row; see `scan.file_bounds`."""

    def positions(self, rows: pa.RecordBatchReader) -> npt.NDArray[np.int64]:
        """The numbers of the chosen rows among these, rising; the rows have these columns."""


class KeyRows(RowChoice, Protocol):
    """Chooses rows that have a key of new rows. A null is no key of any row."""

    def add(self, rows: pa.RecordBatchReader, order: int) -> None:
        """Add the keys of new rows; those of a higher order are later."""

    def doubled(self) -> int:
        """How many keys were added more than once."""

    def replaced(self) -> list[int]:
        """The orders of which some keys came again under a later one."""

    def later(self, rows: pa.RecordBatchReader, order: int) -> npt.NDArray[np.int64]:
        """The numbers of rows among those of an order whose keys came again later."""


KeyRowsMaker = Callable[[pa.Schema], AbstractContextManager[KeyRows]]
"""Makes the keys of one commit, of columns with these types."""
