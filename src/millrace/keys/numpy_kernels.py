"""The kernels in numpy, for machines where the compiled ones are missing.

Invariant: each function does exactly what the one of the same name in `compiled_kernels` does. Rows
are taken 8K at a time, which keeps temporaries in cache. A string costs a few numpy calls per word
of the longest one in its chunk, so very long keys are slow here.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.keys.compiled_kernels import bad_offsets
from millrace.keys.key_columns import CHUNK_ROWS, Bytes, Fixed, float_bits

SEED: Final = 42
BYTE_IDS_MAX: Final = 256

_Words = npt.NDArray[np.uint32]


def fold(column: Fixed | Bytes, running: npt.NDArray[np.int32], *, first: bool) -> None:
    """Hash `column` into `running`, which is the seed of each row unless this is the first."""
    if first:
        running.fill(SEED)
    if isinstance(column, Bytes):
        _check_offsets(column)
    for begin in range(0, len(column), CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, len(column))
        seeds = running[begin:end].view(np.uint32)
        if isinstance(column, Fixed):
            hashed = _hash_fixed(column.values[begin:end], seeds)
        else:
            hashed = _hash_bytes(column.offsets[begin : end + 1], column.data, seeds)
        valid = column.validity.mask(begin, end) if column.validity else True
        np.copyto(seeds, hashed, where=valid)


def pmod(
    hashes: npt.NDArray[np.int32], partitions: int, kind: type[np.uint16 | np.int32]
) -> npt.NDArray[Any]:
    """`hashes` modulo `partitions`, never negative."""
    return np.mod(hashes, np.int32(partitions)).astype(kind, copy=False)


def group_rows(
    ids: npt.NDArray[np.uint16], partitions: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Rows in the order of their partition, stable, and where each partition begins."""
    assert ids.max(initial=0) < partitions, f"a row is in partition {ids.max()} of {partitions}"
    narrow = ids.astype(np.uint8) if partitions <= BYTE_IDS_MAX else ids
    offsets = np.zeros(partitions + 1, np.int64)
    np.cumsum(np.bincount(ids, minlength=partitions), out=offsets[1:])
    return np.argsort(narrow, kind="stable").astype(np.int32), offsets


def _hash_fixed(values: npt.NDArray[Any], seeds: _Words) -> _Words:
    if values.dtype.kind == "f":
        values = float_bits(values)
    if values.dtype.itemsize == 4:  # noqa: PLR2004 - bytes in a word
        return _finish(_mix(seeds, values.view(np.uint32)), 4)
    bits = values.view(np.uint64)
    low, high = bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, low), high), 8)


def _hash_bytes(offsets: npt.NDArray[Any], data: npt.NDArray[np.uint8], seeds: _Words) -> _Words:
    """Mix whole little-endian words, then each byte left over as a sign-extended word."""
    starts = offsets[:-1].astype(np.int64)
    sizes = offsets[1:] - starts
    words, hashed = sizes >> 2, seeds.copy()
    every_word = np.ndarray((max(len(data) - 3, 0),), "<u4", data, 0, (1,))
    going = np.flatnonzero(words > 0)
    done = 0
    while len(going):
        hashed[going] = _mix(hashed[going], every_word[starts[going] + 4 * done])
        done += 1
        going = going[words[going] > done]
    for extra in range(3):
        going = np.flatnonzero((sizes & 3) > extra)
        tail = data.view(np.int8)[starts[going] + 4 * words[going] + extra]
        hashed[going] = _mix(hashed[going], tail.astype(np.int32).view(np.uint32))
    return _finish(hashed, sizes.astype(np.uint32))


def _check_offsets(column: Bytes) -> None:
    sizes = np.diff(column.offsets)
    if column.offsets[0] < 0 or column.offsets[-1] > len(column.data):
        raise bad_offsets()
    if len(sizes) and (sizes.min() < 0 or sizes.max() >= 2**31):
        raise bad_offsets()


def _mix(hashes: _Words, words: _Words) -> _Words:
    k = words * np.uint32(0xCC9E2D51)
    k = _rotate(k, 15)
    k *= np.uint32(0x1B873593)
    k ^= hashes
    k = _rotate(k, 13)
    k *= np.uint32(5)
    k += np.uint32(0xE6546B64)
    return k


def _rotate(words: _Words, bits: int) -> _Words:
    high = words << np.uint32(bits)
    high |= words >> np.uint32(32 - bits)
    return high


def _finish(hashes: _Words, sizes: _Words | int) -> _Words:
    h = hashes ^ np.asarray(sizes, np.uint32)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h
