"""The idempotency key of a row: a digest of the job, the step, the function and the row. Pure.

Law: a row has the same key in a retry, in another worker and in a later run. Any other row, job,
workspace, step or function has another key. The first run of a job makes the job's id and saves it
in the job's record, so the id goes when the job's journals go.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from millrace.pipeline.core.hop_rows import HopRows

_DIGEST_BYTES: Final = 20
_LENGTH_BYTES: Final = 8


def asker_of(job_id: str, job: str, step: str, function: str) -> bytes:
    """The digest that all keys of a step begin with."""
    return _digest(b"asker", *(part.encode() for part in (job_id, job, step, function))).digest()


def row_keys(asker: bytes, journal_id: int, rows: HopRows, begin: int, end: int) -> tuple[str, ...]:
    """The keys of some rows: digests of their content and their position in the journal."""
    offsets = rows.offsets[begin:end]
    # A step in front may have made several rows of one; its first lies where the offset begins.
    repeats = np.arange(begin, end) - np.searchsorted(rows.offsets, offsets)
    batch = rows.batch.slice(begin, end - begin)
    columns = str([(field.name, str(field.type)) for field in batch.schema]).encode()
    numbered_rows = zip(offsets.tolist(), repeats.tolist(), batch.to_pylist(), strict=True)
    return tuple(
        _digest(
            asker, b"%d/%d/%d" % (journal_id, offset, repeat), columns, _content(row)
        ).hexdigest()
        for offset, repeat, row in numbered_rows
    )


def batch_key(keys: Sequence[str]) -> str:
    """The key of a call for several rows."""
    return keys[0] if len(keys) == 1 else _digest(b"batch", *map(str.encode, keys)).hexdigest()


def _digest(*parts: bytes) -> hashlib.blake2b:
    """A digest of the parts with their lengths, so that two lists of parts never give one text."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(_LENGTH_BYTES))
        digest.update(part)
    return digest


def _content(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, default=_in_words).encode()


def _in_words(value: Any) -> str:  # noqa: ANN401 - anything that Arrow gives for a value
    return value.hex() if isinstance(value, bytes) else str(value)
