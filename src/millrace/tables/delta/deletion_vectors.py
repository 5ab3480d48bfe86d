"""Deletion vectors of Delta tables: rows of a file that the table no longer has.

Invariant: a vector whose length, checksum or number of rows is not what the log says is an error.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.config import Config
from millrace.errors import DataLost, UserError
from millrace.storage.storage_options import StorageOptions
from millrace.tables.delta.log_folder import table_folder
from millrace.tables.roaring import NoBitmap, numbers_of_64_bits

_MAGIC: Final = 1681511377
_UUID_LETTERS: Final = 20
_Z85: Final = (
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_B85: Final = (
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
)
_FROM_Z85: Final = bytes.maketrans(_Z85, _B85)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """See `scan.file_mapping.DeletedRows`: the task that reads the file reads the vector, too."""

    uri: str
    """The table's."""
    options: StorageOptions
    storage: str
    where: str
    """A name or the bytes themselves, as the log has them."""
    offset: int
    size: int
    rows: int

    @classmethod
    def of(cls, given: Mapping[str, Any], *, uri: str, options: StorageOptions) -> DeletionVector:
        """The vector that an add action describes."""
        if given["storageType"] not in ("u", "i", "p"):
            raise UserError(
                f"a deletion vector of {uri} cannot be read\n"
                f"  found: storage type {given['storageType']!r}\n  to fix: read it with Spark"
            )
        return cls(
            uri=uri,
            options=options,
            storage=given["storageType"],
            where=given["pathOrInlineDv"],
            offset=given.get("offset") or 0,
            size=given["sizeInBytes"],
            rows=given["cardinality"],
        )

    def identity(self) -> list[Any]:
        """See `DeletedRows.identity`."""
        return [self.storage, self.where, self.offset, self.size, self.rows]

    def positions(self) -> npt.NDArray[np.int64]:
        """See `DeletedRows.positions`."""
        data = self._bytes()
        if len(data) != self.size or data[:4] != _MAGIC.to_bytes(4, "little"):
            raise self._damaged(f"{len(data)} bytes")
        try:
            numbers = numbers_of_64_bits(data[4:])
        except NoBitmap as error:
            raise self._damaged(str(error)) from error
        if len(numbers) != self.rows:
            raise self._damaged(f"{len(numbers)} rows")
        return numbers

    def _bytes(self) -> bytes:
        if self.storage == "i":
            return base64.b85decode(self.where.encode().translate(_FROM_Z85))
        data = self._file()
        try:
            (size,) = struct.unpack_from(">I", data, self.offset)
            begin = self.offset + 4
            (checksum,) = struct.unpack_from(">I", data, begin + size)
        except struct.error as error:
            raise self._damaged("a file that is too short") from error
        found = data[begin : begin + size]
        if zlib.crc32(found) != checksum:
            raise self._damaged("bytes that do not match their checksum")
        return found

    def _file(self) -> bytes:
        folder = table_folder(self.uri, self.options, Config())
        if self.storage == "p":
            place, _, name = self.where.removeprefix("file:").rpartition("/")
            folder = table_folder(place, self.options, Config())
        else:
            letters = self.where[-_UUID_LETTERS:].encode().translate(_FROM_Z85)
            prefix = self.where[:-_UUID_LETTERS]
            name = f"deletion_vector_{uuid.UUID(bytes=base64.b85decode(letters))}.bin"
            name = f"{prefix}/{name}" if prefix else name
        data = folder.read(name)
        if data is None:
            raise DataLost(
                f"a deletion vector of {self.uri} is gone\n  found: no {name}\n"
                "  to fix: restore it, or read a later version of the table"
            )
        return data

    def _damaged(self, found: str) -> DataLost:
        return DataLost(
            f"a deletion vector of {self.uri} is damaged: {self.where}\n"
            f"  expected: {self.size} bytes, {self.rows} rows\n  found: {found}\n"
            "  to fix: restore it, or read another version of the table"
        )
