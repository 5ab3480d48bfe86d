"""Finds the file and the row of a value, for a message about that value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import MillraceError
from millrace.scan.source import SplitReader
from millrace.scan.splits import FileSplit, MapInput

_FILES_NAMED_MAX: Final = 3


def where_is(
    reader: SplitReader, inputs: Sequence[MapInput], column: str, value: str, batch_bytes: int
) -> str:
    """The row and the file of a value; the files that were read if none has it as it is."""
    splits = [split for part in inputs for split in part.splits]
    if column in reader.schema.names:
        alone = replace(reader, columns=(column,))
        for split in splits:
            row = _row(alone, split, value, batch_bytes)
            if row is not None:
                return row
    paths = list(dict.fromkeys(split.file.path for split in splits))
    more = len(paths) - _FILES_NAMED_MAX
    return ", ".join(paths[:_FILES_NAMED_MAX]) + (f" and {more:,} more files" if more > 0 else "")


def _row(reader: SplitReader, split: FileSplit, value: str, batch_bytes: int) -> str | None:
    passed = 0
    try:
        for batch in reader.batches(MapInput((split,)), batch_bytes):
            row = pc.index(batch.column(0).cast(pa.string()), value).as_py()
            if row >= 0:
                counted_from = "" if split.row_groups is None else f" of row groups {_shown(split)}"
                return f"row {passed + row + 1:,}{counted_from} of {split.file.path}"
            passed += batch.num_rows
    except (MillraceError, pa.ArrowException):
        return None  # The message about the value is what counts.
    return None


def _shown(split: FileSplit) -> str:
    groups = split.row_groups or ()
    return f"{groups[0]} to {groups[-1]}"
