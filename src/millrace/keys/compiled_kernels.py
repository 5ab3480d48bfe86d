"""The compiled kernels of `_kernels.c`, where the install could compile them.

`MILLRACE_NATIVE=0` in the environment turns them off. Invariant: each function does exactly what
the function of the same name in `numpy_kernels` does.
"""

from __future__ import annotations

import ctypes
import logging
import os
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millrace.errors import UserError
from millrace.keys.key_columns import Bytes, Fixed, Validity

_LOG: Final = logging.getLogger(__name__)
_POINTER: Final = ctypes.c_void_p
_LONG: Final = ctypes.c_int64
_INT: Final = ctypes.c_int32

_FIXED: Final = (_POINTER, _POINTER, _LONG, _LONG, _INT, _POINTER)
_BYTES: Final = (_POINTER, _POINTER, _LONG, *_FIXED[1:])
_PMOD: Final = (_POINTER, _LONG, ctypes.c_uint32, _POINTER)
_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "hash_int32": (None, _FIXED),
    "hash_int64": (None, _FIXED),
    "hash_float32": (None, _FIXED),
    "hash_float64": (None, _FIXED),
    "hash_bytes32": (_LONG, _BYTES),
    "hash_bytes64": (_LONG, _BYTES),
    "pmod_uint16": (None, _PMOD),
    "pmod_int32": (None, _PMOD),
    "group_rows": (_LONG, (_POINTER, _LONG, _LONG, _POINTER, _POINTER)),
}


def available() -> bool:
    """Whether the compiled kernels are there and not turned off."""
    return os.environ.get("MILLRACE_NATIVE") != "0" and _kernels() is not None


def fold(column: Fixed | Bytes, running: npt.NDArray[np.int32], *, first: bool) -> None:
    """Hash `column` into `running`, which is the seed of each row unless this is the first."""
    bitmap, start = _bitmap(column.validity)
    rows, out = len(column), running.ctypes.data
    if isinstance(column, Fixed):
        kernel = _kernel(f"hash_{column.values.dtype.name}")
        kernel(column.values.ctypes.data, bitmap, start, rows, first, out)
        return
    kernel = _kernel(f"hash_bytes{column.offsets.dtype.itemsize * 8}")
    data = column.data
    bad = kernel(
        column.offsets.ctypes.data, data.ctypes.data, len(data), bitmap, start, rows, first, out
    )
    if bad >= 0:
        raise bad_offsets()


def pmod(
    hashes: npt.NDArray[np.int32], partitions: int, kind: type[np.uint16 | np.int32]
) -> npt.NDArray[Any]:
    """`hashes` modulo `partitions`, never negative."""
    ids = np.empty(len(hashes), kind)
    _kernel(f"pmod_{ids.dtype.name}")(hashes.ctypes.data, len(hashes), partitions, ids.ctypes.data)
    return ids


def group_rows(
    ids: npt.NDArray[np.uint16], partitions: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Rows in the order of their partition, stable, and where each partition begins."""
    order = np.empty(len(ids), np.int32)
    offsets = np.empty(partitions + 1, np.int64)
    bad = _kernel("group_rows")(
        ids.ctypes.data, len(ids), partitions, offsets.ctypes.data, order.ctypes.data
    )
    assert bad < 0, f"row {bad} is in partition {ids[bad]} of {partitions}"
    return order, offsets


def bad_offsets() -> UserError:
    """Word the error for a string or binary column that contradicts itself."""
    return UserError(
        "a key column's offsets point outside its data, or a value has 2 GiB or more"
        "\n  to fix: call validate(full=True) on the column, and read it again from its source"
    )


@cache
def _kernels() -> ctypes.CDLL | None:
    folder = os.path.dirname(__file__)
    for suffix in EXTENSION_SUFFIXES:
        path = os.path.join(folder, "_kernels" + suffix)
        if os.path.exists(path):
            return ctypes.CDLL(path)
    _LOG.info("no compiled kernels in %s: keys are hashed with numpy, which is slower", folder)
    return None


@cache
def _kernel(name: str) -> Any:  # noqa: ANN401 - ctypes has no better type
    library = _kernels()
    assert library is not None, "ask available() first"
    kernel = getattr(library, f"millrace_{name}")
    kernel.restype, kernel.argtypes = _SIGNATURES[name]
    return kernel


def _bitmap(validity: Validity | None) -> tuple[int | None, int]:
    if validity is None:
        return None, 0
    return validity.bitmap.ctypes.data, validity.start
