"""Rows that an Iceberg table deleted by their positions: delete files, and deletion vectors.

Invariant: a deletion vector whose bytes are not what they were written as is an error.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.errors import DataLost, UserError
from millrace.scan.input_files import InputFile
from millrace.scan.remote_files import random_access
from millrace.tables.roaring import NoBitmap, numbers_of_64_bits

_PATH: Final = "file_path"
_POSITION: Final = "pos"
_VECTOR: Final = "deletion-vector-v1"
_MAGIC: Final = b"\xd1\xd3\x39\x64"
_PUFFIN: Final = b"PFA1"
_FOOTER_END: Final = 12
"""The bytes behind a Puffin file's footer: its size, flags, and the mark of the format."""


@dataclass(frozen=True, slots=True)
class PositionFile:
    """A Parquet file of deleted positions; `path` is the data file as the table names it."""

    file: InputFile
    path: str

    def positions(self) -> npt.NDArray[np.int64]:
        """Those in the data file."""
        try:
            with pq.ParquetFile(random_access(self.file.path, self.file.options)) as file:
                rows = file.read([_PATH, _POSITION], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self.file.path, error) from error
        mine = rows.filter(pc.equal(rows[_PATH].cast(pa.string()), self.path))
        return np.asarray(mine[_POSITION].cast(pa.int64()), np.int64)


@dataclass(frozen=True, slots=True)
class VectorPart:
    """A deletion vector of one data file, in a Puffin file."""

    file: InputFile
    offset: int
    size: int

    def positions(self) -> npt.NDArray[np.int64]:
        """Those in the data file."""
        data = _read(self.file, self.offset, self.size)
        length, magic = int.from_bytes(data[:4], "big"), data[4:8]
        body, checksum = data[4 : 4 + length], int.from_bytes(data[4 + length :], "big")
        if magic != _MAGIC or len(data) != length + 8 or zlib.crc32(body) != checksum:
            raise _damaged(self.file.path, "its length, mark or checksum is wrong")
        try:
            return numbers_of_64_bits(body[4:])
        except NoBitmap as error:
            raise _damaged(self.file.path, str(error)) from error


@dataclass(frozen=True, slots=True)
class DeletedPositions:
    """All that is deleted of one data file."""

    parts: tuple[PositionFile | VectorPart, ...]

    def identity(self) -> list[Any]:
        """The files with the positions, and the place in them."""
        return [
            [part.file.identity(), *([part.offset] if isinstance(part, VectorPart) else [])]
            for part in self.parts
        ]

    def positions(self) -> npt.NDArray[np.int64]:
        """The numbers of the rows, sorted."""
        return np.unique(np.concatenate([part.positions() for part in self.parts]))


def data_paths(file: InputFile) -> Iterable[str]:
    """The data files of which a file of positions has some."""
    return _data_paths(file)


@lru_cache(maxsize=4096)
def _data_paths(file: InputFile) -> tuple[str, ...]:
    try:
        with pq.ParquetFile(
            random_access(file.path, file.options), read_dictionary=[_PATH]
        ) as parquet:
            paths = parquet.read([_PATH], use_threads=False)[_PATH]
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file.path, error) from error
    return tuple(pc.unique(paths).cast(pa.string()).to_pylist())


@lru_cache(maxsize=4096)
def vectors_in(file: InputFile) -> Mapping[str, VectorPart]:
    """The deletion vectors of a Puffin file, by the data file that each is for."""
    end = _read(file, file.size - _FOOTER_END, _FOOTER_END)
    size, flags = int.from_bytes(end[:4], "little"), end[4:8]
    if end[8:] != _PUFFIN or any(flags) or not 0 < size <= file.size:
        raise _damaged(file.path, "its footer is compressed, or is no footer of a Puffin file")
    footer = json.loads(_read(file, file.size - _FOOTER_END - size, size))
    found: dict[str, VectorPart] = {}
    for blob in footer["blobs"]:
        if blob["type"] == _VECTOR:
            if blob.get("compression-codec"):
                raise _damaged(file.path, "a deletion vector is compressed")
            path = str(blob["properties"]["referenced-data-file"])
            found[path] = VectorPart(file, int(blob["offset"]), int(blob["length"]))
    return found


def _read(file: InputFile, offset: int, size: int) -> bytes:
    try:
        source = random_access(file.path, file.options)
        with pa.OSFile(source) if isinstance(source, str) else source as opened:
            opened.seek(offset)
            return bytes(opened.read(size))
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(file.path, error) from error


def _unreadable(path: str, error: Exception) -> UserError:
    return UserError(
        f"delete file {path} of an Iceberg table cannot be read: {error}\n"
        "  to fix: read the table again, if its old snapshots were removed; else repair the file"
    )


def _damaged(path: str, why: str) -> DataLost:
    return DataLost(
        f"delete file {path} of an Iceberg table is not as it was written\n  found: {why}\n"
        "  to fix: restore the file, or read another snapshot"
    )
