"""Fingerprints of map tasks. Pure.

A fingerprint is a digest of `made_from`: the scan, the input files with their sizes and times, the
partitioner and the versions of the software. An attempt is reused only if its whole `made_from` is
equal, not just the digest. A family is a digest of the paths alone: it leads from a task to the
output of an earlier, different version, so that a run can report what changed.

Invariant: if two tasks might not be the same work, their fingerprints differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.ids import Fingerprint

_Object = dict[str, Any]

_DIGEST_BYTES: Final = 16
_SHOWN_MAX: Final = 3


def fingerprint(made_from: Mapping[str, Any]) -> Fingerprint:
    """Digest of everything that the output depends on."""
    return Fingerprint(_digest(made_from))


def family(made_from: Mapping[str, Any]) -> str:
    """Digest of the paths of the inputs, without their versions."""
    inputs = made_from.get("inputs", [])
    return _digest([[entry["path"], entry.get("row_groups")] for entry in inputs])


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two provenances are equal once written as JSON."""
    return _canonical(left) == _canonical(right)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The differences in words: why the output of `old` cannot be used for `new`."""
    before, after = json.loads(_canonical(old)), json.loads(_canonical(new))
    changes = _input_changes(before.pop("inputs", []), after.pop("inputs", []))
    changes += _column_changes(before.get("scan"), after.get("scan"))
    _compare(before, after, "", changes)
    shown = changes[:_SHOWN_MAX]
    if len(changes) > _SHOWN_MAX:
        shown.append(f"and {len(changes) - _SHOWN_MAX} more")
    return "; ".join(shown) or "nothing that was recorded"


def _input_changes(old: Sequence[_Object], new: Sequence[_Object]) -> list[str]:
    if [entry.get("path") for entry in old] != [entry.get("path") for entry in new]:
        return [f"input files changed from {_names(old)} to {_names(new)}"]
    changed = [
        f"{_name(after)} changed ({_how(before, after)})"
        for before, after in zip(old, new, strict=True)
        if before != after
    ]
    return list(dict.fromkeys(changed))


def _how(old: _Object, new: _Object) -> str:
    """The difference between two versions of a file, or of a stage's rows, in words."""
    if "consumed" in new:
        return "the stage has run since and gave others"
    if old.get("size") != new.get("size"):
        return f"size {old.get('size')} to {new.get('size')}"
    if ("content" in old) != ("content" in new):
        by = "its bytes" if "content" in new else "its time of change"
        return f"now told apart by {by}"
    if old.get("content") != new.get("content"):
        return "content"
    times = ("mtime_ns", "ctime_ns")
    if any(old.get(name) != new.get(name) for name in times):
        return "time of change"
    return "which part of it is read"


def _column_changes(old: _Object | None, new: _Object | None) -> list[str]:
    """Differences of the scanned columns, which are then no longer compared one by one."""
    before, after = (old or {}).pop("schema", None), (new or {}).pop("schema", None)
    if before == after:
        return []
    types, now = dict(before or []), dict(after or [])
    if list(types) != list(now):
        return [f"columns changed from {_short(list(types))} to {_short(list(now))}"]
    return [
        f"column {name!r} changed from {types[name]} to {now[name]}"
        for name in types
        if types[name] != now[name]
    ]


def _compare(old: object, new: object, name: str, changes: list[str]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            _compare(old.get(key), new.get(key), f"{name} {key}" if name else key, changes)
    elif old != new:
        changes.append(f"{name} changed from {_short(old)} to {_short(new)}")


def _names(entries: Sequence[_Object]) -> str:
    return ", ".join(sorted({_name(entry) for entry in entries})) or "none"


def _name(entry: _Object) -> str:
    path = str(entry.get("path"))
    if "consumed" in entry:
        # The path has a digest and partitions: they tell tasks apart, and people nothing.
        number = re.match(r"stage read (\d+) ", path)
        return "rows of an earlier stage" + (f" (input {int(number[1]) + 1})" if number else "")
    return path.rpartition("/")[2]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004


def _digest(value: object) -> str:
    return hashlib.blake2b(_canonical(value).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
