"""Types of messages, made known to msgspec by one thread at a time.

msgspec learns the fields of a struct when the struct is first decoded. A second thread that decodes
one meanwhile finds half of them, and ends the process: SIGSEGV, in msgspec 0.22 under the GIL too.

Invariant: no struct is decoded before all of it is known.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")
_known: set[Any] = set()
_learning = threading.Lock()


def known(kind: Kind) -> Kind:
    """The type itself, once msgspec knows all of it; to be given to each call that decodes."""
    if kind not in _known:
        with _learning:
            msgspec.msgpack.Decoder(kind)
            _known.add(kind)
    return kind


def _begin_again() -> None:
    """Another thread may have been learning when this process was forked."""
    global _learning  # noqa: PLW0603 - the lock of this process
    _learning = threading.Lock()


os.register_at_fork(after_in_child=_begin_again)
