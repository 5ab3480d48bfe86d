"""Names and labels of journals, and which of them a selector takes. Pure.

A name is a path such as `acme/orders/region=eu`. A prefix ends at a part: `acme/orders` takes
`acme/orders` and `acme/orders/region=eu`, and not `acme/orders-old`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NewType

from millrace.errors import UserError

JournalId = NewType("JournalId", int)
"""The number of a journal in its ledger, given once and for good."""
Offset = NewType("Offset", int)
"""Where a row lies in its journal; offsets increase and are not dense."""

NAME_LENGTH_MAX: Final = 512
LABEL_LENGTH_MAX: Final = 256
_PART: Final = re.compile(r"[A-Za-z0-9_.=:@+%,~-]+")
_LABEL: Final = re.compile(r"[A-Za-z0-9_.:/-]+")


def check_name(name: str) -> str:
    """Refuse a name that cannot be a journal's."""
    if not isinstance(name, str):
        raise UserError(
            f"a journal's name is text\n  found: {name!r}\n"
            "  to fix: give a name, as in 'acme/orders'"
        )
    parts = name.split("/")
    bad = next((p for p in parts if not _PART.fullmatch(p) or p in (".", "..")), None)
    if bad is not None or len(name) > NAME_LENGTH_MAX:
        why = f"part {bad!r}" if bad is not None else f"{len(name)} characters"
        raise UserError(
            f"{name[:80]!r} cannot name a journal: {why}\n  to fix: use parts of letters, digits "
            f"and _.=:@+%,~- between single slashes, at most {NAME_LENGTH_MAX} characters"
        )
    return name


def check_labels(labels: Mapping[Any, Any]) -> dict[str, str]:
    """Refuse labels that are not short texts under plain names."""
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UserError(f"label {key!r} is {value!r}\n  to fix: give texts for both")
        if not _LABEL.fullmatch(key) or max(len(key), len(value)) > LABEL_LENGTH_MAX:
            raise UserError(
                f"label {key[:80]!r} with a value of {len(value)} characters cannot be kept\n  "
                f"to fix: name it by letters, digits and _.:/-, at most {LABEL_LENGTH_MAX} each"
            )
    return dict(sorted(labels.items()))


@dataclass(frozen=True, slots=True)
class Selector:
    """Which journals are meant: those under a prefix whose labels fit.

    `labels` wants each of these labels with one of its values; `without` wants none of these.
    """

    prefix: str = ""
    labels: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    without: Mapping[str, str | Sequence[str]] = field(default_factory=dict)

    def takes(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a journal is one of those meant."""
        if not under(self.prefix, name):
            return False
        if any(labels.get(key) in _values(v) for key, v in self.without.items()):
            return False
        return all(labels.get(key) in _values(v) for key, v in self.labels.items())


def under(prefix: str, name: str) -> bool:
    """Whether a name is the prefix or lies below it."""
    if not prefix or name == prefix:
        return True
    return name.startswith(prefix if prefix.endswith("/") else prefix + "/")


def _values(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given
