"""What makes two map tasks the same work. Pure.

A fingerprint is a digest of `made_from`: the scan, the input files with their sizes and times, the
partitioner and the versions of what read and wrote. An attempt is used again only if its whole
`made_from` is equal, not just the digest. A family is the same inputs by path alone: it leads from
a task to what an earlier, different version of it left, so that a run can say what changed.

Invariant: when two tasks might not be the same work, their fingerprints differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from millrace.ids import Fingerprint

_DIGEST_BYTES: Final = 16


def fingerprint(made_from: Mapping[str, Any]) -> Fingerprint:
    """Digest of everything that decides the output."""
    return Fingerprint(_digest(made_from))


def family(made_from: Mapping[str, Any]) -> str:
    """Digest of where the inputs lie, whatever their version."""
    inputs = made_from.get("inputs", [])
    return _digest([[entry["path"], entry.get("row_groups")] for entry in inputs])


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two provenances are equal, as they read after a trip through JSON."""
    return _canonical(left) == _canonical(right)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What differs, in words: the reason that `old`'s output cannot be used for `new`."""
    found: list[str] = []
    _compare(json.loads(_canonical(old)), json.loads(_canonical(new)), "", found)
    shown = found[:3] + ([f"and {len(found) - 3} more"] if len(found) > 3 else [])  # noqa: PLR2004
    return "; ".join(shown) or "nothing that was recorded"


def _compare(old: object, new: object, name: str, found: list[str]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            _compare(old.get(key), new.get(key), f"{name}.{key}" if name else key, found)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for position, (left, right) in enumerate(zip(old, new, strict=True)):
            _compare(left, right, f"{name}[{position}]", found)
    elif old != new:
        found.append(f"{name} changed from {_short(old)} to {_short(new)}")


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004


def _digest(value: object) -> str:
    return hashlib.blake2b(_canonical(value).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
