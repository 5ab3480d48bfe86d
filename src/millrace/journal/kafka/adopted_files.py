"""Files that tasks wrote to be adopted: here their rows become messages, and the files go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import pyarrow as pa
import xxhash

from millrace.errors import Corrupt, UserError
from millrace.journal.core.book import FileContent
from millrace.journal.core.row_format import bare_rows
from millrace.journal.core.values import SegmentFile
from millrace.journal.row_files import check_length
from millrace.storage.store import storage_errors


def check(file: SegmentFile, folder: str) -> None:
    """Refuse a file that is outside the folder or is not as it was written."""
    path = os.path.abspath(file.path)
    if not path.startswith(folder + os.sep):
        raise UserError(
            f"file {path} cannot be adopted from where it lies\n  to fix: write it below {folder}"
        )
    try:
        size: int | None = os.path.getsize(path)
    except FileNotFoundError:
        size = None
    check_length(file, size)


def read(content: FileContent, schema: pa.Schema) -> pa.RecordBatch:
    """The stored rows of a piece of a file."""
    with storage_errors(f"reading {content.path}"), open(content.path, "rb") as file:
        file.seek(content.part.position)
        data = file.read(content.part.bytes)
    checksum = xxhash.xxh3_64_hexdigest(data)
    if checksum != content.part.checksum:
        raise Corrupt(
            f"{content.path} to adopt does not have the bytes that were written\n"
            f"  expected: {content.part.checksum}, found: {checksum}\n  to fix: write it again"
        )
    return bare_rows(data, schema, content.stamp, is_keyed=content.is_keyed)


def remove(path: str) -> bool:
    """Delete a file whose rows are in Kafka; whether it is gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def sweep(folder: str, oldest_s: float, is_adopted: Callable[[str], bool]) -> None:
    """Delete files that were written long ago and that were not adopted."""
    for inside, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inside, name)
            with contextlib.suppress(FileNotFoundError):
                if not is_adopted(path) and os.path.getmtime(path) <= oldest_s:
                    os.unlink(path)
