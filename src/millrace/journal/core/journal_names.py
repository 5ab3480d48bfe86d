"""Names and labels of journals, and which of them a selector takes. Pure.

A name is a path such as `acme/orders/region=eu`. A prefix ends at a part: `acme/orders` takes
`acme/orders` and `acme/orders/region=eu`, and not `acme/orders-old`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NewType

from millrace.errors import UserError
from millrace.journal.core.number_ranges import Int64
from millrace.names import check_text

JournalId = NewType("JournalId", Int64)
"""The number of a journal in its ledger, given once and for good."""
Offset = NewType("Offset", Int64)
"""The position of a row in its journal; offsets increase and are not dense."""

NO_JOURNAL: Final = "//"
"""A prefix that no journal has, for callers that want no list of them."""
LABEL_LENGTH_MAX: Final = 256
_PART: Final = r"(?!\.{1,2}(?:/|$))[A-Za-z0-9_.=:@+%,~-]+"
_NAME: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_ALLOWED: Final = (
    "parts of letters, digits and _.=:@+%,~- between single slashes, none of them . or .."
)
_LABEL: Final = re.compile(r"[A-Za-z0-9_.:/-]+")


def check_name(name: str) -> str:
    """Refuse a name that cannot be a journal's."""
    return check_text(name, "a journal", pattern=_NAME, allowed=_ALLOWED)


def check_group(name: str) -> str:
    """Refuse a name that cannot be a group's."""
    return check_text(name, "a group")


def check_labels(labels: Mapping[Any, Any]) -> dict[str, str]:
    """Refuse labels that are not short texts under plain names."""
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UserError(f"label {key!r} is {value!r}\n  to fix: give texts for both")
        check_text(value or "-", f"the value of label {key!r}", length_max=LABEL_LENGTH_MAX)
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

    @property
    def is_prefix(self) -> bool:
        """Whether the name alone decides."""
        return not self.labels and not self.without

    def takes(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a journal is one of those meant."""
        if not under(self.prefix, name):
            return False
        if any(labels.get(key) in _values(v) for key, v in self.without.items()):
            return False
        return all(labels.get(key) in _values(v) for key, v in self.labels.items())


@dataclass(frozen=True, slots=True)
class JournalChoice:
    """Some journals, for a look that need not see them all: by name, and by what is above them."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    """A journal of this name, and those below it."""

    def spans(self) -> tuple[tuple[str, str], ...]:
        """First name, and the first name behind, of each part: names sort by their UTF-8 bytes."""
        single = {name for name in (*self.names, *self.prefixes) if name}
        below = {prefix.removesuffix("/") + "/" for prefix in self.prefixes if prefix}
        spans = [(name, name + "\0") for name in sorted(single)]
        return (*spans, *((text, text[:-1] + "0") for text in _outermost(below)))


def _outermost(folders: Iterable[str]) -> list[str]:
    """Folders that are not within others of them."""
    kept: list[str] = []
    for folder in sorted(folders):
        if not kept or not folder.startswith(kept[-1]):
            kept.append(folder)
    return kept


def under(prefix: str, name: str) -> bool:
    """Whether a name is the prefix or is below it."""
    if not prefix or name == prefix:
        return True
    return name.startswith(prefix if prefix.endswith("/") else prefix + "/")


def names_under(prefix: str, names: Iterable[str]) -> list[bool]:
    """Whether each of very many names is the prefix or is below it."""
    if not prefix:
        return [True for _ in names]
    below = prefix if prefix.endswith("/") else prefix + "/"
    return [name.startswith(below) or name == prefix for name in names]


def _values(given: str | Sequence[str]) -> Sequence[str]:
    return (given,) if isinstance(given, str) else given
