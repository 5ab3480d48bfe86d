"""A coordinated read: which journals are read together, in what order, by which key. Pure.

A cohort is a distinct pair of priority and read delay, numbered in the order of the bindings.
Transactions over several journals are whole within a cohort.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NewType

from millrace.durations import Duration, milliseconds, ms, seconds, shown
from millrace.errors import UserError
from millrace.journal.core.clocks import CLOCK_MAX, Clock, clock_at
from millrace.journal.core.journal_names import Selector
from millrace.names import check_text
from millrace.reads.model.tags import BINDINGS_MAX
from millrace.text import did_you_mean

CohortNumber = NewType("CohortNumber", int)

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME_LENGTH_MAX: Final = 100
_NS_PER_MS: Final = 1_000_000
_CLOCKS_PER_MS: Final = clock_at(_NS_PER_MS)
_MOMENT_MS_MAX: Final = CLOCK_MAX // _CLOCKS_PER_MS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Journals that are read alike.

    Args:
        name: unique in its read; appears in results and messages.
        prefix: journals of this name or below it.
        labels: and with each of these labels, one of these values.
        key: columns by which rows are shared among members, or pointers such as "/user/id" into
            JSON documents; without one, rows are spread evenly.
        priority: rows of a higher one come first.
        read_delay: rows wait until this long after they were written: seconds, a timedelta, or text
            such as "10s".
        not_before_ms: rows written before this moment, since 1970 UTC, are left out.
        not_after_ms: and so are those written after this one.

    Example:
        >>> mr.Binding(name="orders", prefix="acme/orders", key="cust_id", priority=1).key
        ('cust_id',)
    """

    name: str
    prefix: str
    labels: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    key: Sequence[str] = ()
    priority: int = 0
    read_delay: Duration = 0.0
    not_before_ms: int | None = None
    not_after_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse arguments that make no sense."""
        _check_name(self.name, "binding")
        if not isinstance(self.prefix, str):
            raise _wrong(self.name, f"prefix is {self.prefix!r}, not a text")
        _check_labels(self.name, self.labels)
        object.__setattr__(self, "key", _checked_key(self.name, self.key))
        object.__setattr__(self, "read_delay", _checked_delay(self.name, self.read_delay))
        for name in ("priority", "not_before_ms", "not_after_ms"):
            value = getattr(self, name)
            may_lack = name in ("not_before_ms", "not_after_ms")
            if type(value) is not int and not (may_lack and value is None):
                raise _wrong(self.name, f"{name} is {value!r}, not a whole number")
        if not -(2**31) <= self.priority < 2**31:
            raise _wrong(self.name, f"priority {self.priority} does not fit 32 bits")
        _check_times(self)

    @property
    def selector(self) -> Selector:
        """The selector of its journals."""
        return Selector(self.prefix, self.labels)

    @property
    def delay(self) -> int:
        """The read delay, in units of clocks."""
        return clock_at(ms(self.read_delay) * _NS_PER_MS)

    @property
    def lowest_clock(self) -> Clock:
        """Rows below it are left out."""
        return Clock(0) if self.not_before_ms is None else _moment(self.not_before_ms)

    @property
    def highest_clock(self) -> Clock:
        """Rows above it are left out."""
        if self.not_after_ms is None:
            return Clock(2**64 - 1)
        return Clock(_moment(self.not_after_ms + 1) - 1)


@dataclass(frozen=True, slots=True)
class CoordinatedRead:
    """A set of journals that are read together, under a name that its checkpoints are kept by.

    Example:
        >>> orders = mr.Binding(name="orders", prefix="orders", key="cust_id")
        >>> payments = mr.Binding(name="payments", prefix="payments", key="cust_id")
        >>> mr.CoordinatedRead("totals", [orders, payments]).name
        'totals'
    """

    name: str
    bindings: tuple[Binding, ...]

    def __init__(self, name: str, bindings: Sequence[Binding]) -> None:
        _check_name(name, "coordinated read")
        if isinstance(bindings, Binding) or not all(isinstance(item, Binding) for item in bindings):
            raise UserError(
                f"coordinated read {name} needs a list of bindings\n  found: {bindings!r}\n"
                '  to fix: give [millrace.Binding(name="orders", prefix="orders")]'
            )
        if not 1 <= len(bindings) <= BINDINGS_MAX:
            raise UserError(
                f"coordinated read {name} has no bindings, or too many\n  found: {len(bindings)}\n"
                f"  to fix: give 1 to {BINDINGS_MAX:,}"
            )
        names = [binding.name for binding in bindings]
        twice = next(
            (binding_name for binding_name in names if names.count(binding_name) > 1), None
        )
        if twice is not None:
            raise UserError(
                f"coordinated read {name} has two bindings {twice}\n  to fix: name them apart"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "bindings", tuple(bindings))

    def cohorts(self) -> tuple[CohortNumber, ...]:
        """The cohort of each binding.

        Example:
            >>> now = mr.Binding(name="now", prefix="orders")
            >>> later = mr.Binding(name="later", prefix="payments", read_delay="1m")
            >>> mr.CoordinatedRead("totals", [now, later]).cohorts()
            (0, 1)
        """
        numbers: dict[tuple[int, int], CohortNumber] = {}
        return tuple(
            numbers.setdefault((binding.priority, binding.delay), CohortNumber(len(numbers)))
            for binding in self.bindings
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON and read files.

        Example:
            >>> read = mr.CoordinatedRead("totals", [mr.Binding(name="orders", prefix="orders")])
            >>> mr.CoordinatedRead.from_dict(read.to_dict()) == read
            True
        """
        return {
            "name": self.name,
            "bindings": [
                {
                    key: value
                    for key, value in {
                        "name": binding.name,
                        "prefix": binding.prefix,
                        "labels": {k: _plain(v) for k, v in binding.labels.items()},
                        "key": list(binding.key),
                        "priority": binding.priority,
                        "read_delay": shown(seconds(binding.read_delay, "read_delay")),
                        "not_before_ms": binding.not_before_ms,
                        "not_after_ms": binding.not_after_ms,
                    }.items()
                    if value is not None
                }
                for binding in self.bindings
            ],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> CoordinatedRead:
        """From plain values, as a read file holds them.

        Example:
            >>> read = mr.CoordinatedRead.from_dict(
            ...     {"name": "totals", "bindings": [{"name": "orders", "prefix": "orders"}]}
            ... )
            >>> [binding.name for binding in read.bindings]
            ['orders']
        """
        _check_fields(content, ("name", "bindings"), "coordinated read")
        bindings = content.get("bindings")
        if not isinstance(bindings, list) or not isinstance(content.get("name"), str):
            raise UserError(
                "a coordinated read needs a name and a list of bindings\n"
                '  to fix: write {"name": ..., "bindings": [...]}'
            )
        return cls(content["name"], [_binding(fields) for fields in bindings])


def _binding(content: object) -> Binding:
    if not isinstance(content, Mapping) or not isinstance(content.get("name"), str):
        raise UserError("a binding needs a name\n  to fix: name = ..., prefix = ...")
    _check_fields(content, tuple(Binding.__dataclass_fields__), f"binding {content['name']}")
    try:
        return Binding(**content)
    except TypeError as error:
        raise _wrong(content["name"], str(error)) from error


def _check_fields(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in content:
        if name not in known:
            fix = did_you_mean(str(name), known, "use one of these")
            raise UserError(
                f"{where} has an unknown field {name!r}\n  found: known are {', '.join(known)}\n"
                f"  to fix: {fix}"
            )


def _check_name(name: object, what: str) -> None:
    check_text(
        name,
        f"a {what}",
        pattern=_NAME,
        allowed="letters, digits and _.-, beginning with a letter, a digit or _",
        length_max=_NAME_LENGTH_MAX,
    )


def _check_labels(name: str, labels: object) -> None:
    if not isinstance(labels, Mapping):
        raise _wrong(name, f"labels is {labels!r}, not names with their values")
    for label, value in labels.items():
        values = (value,) if isinstance(value, str) else value
        if not isinstance(values, Sequence) or not all(isinstance(text, str) for text in values):
            raise _wrong(name, f"label {label} is {value!r}, not a text or a list of them")


def _checked_key(name: str, key: object) -> tuple[str, ...]:
    if isinstance(key, str):
        return _checked_key(name, (key,))
    if not isinstance(key, Sequence):
        raise _wrong(name, f"key is {key!r}, not a list of columns")
    for part in key:
        if not isinstance(part, str):
            raise _wrong(name, f"key {part!r} is no text")
        if not part:
            raise _wrong(name, "key '' is empty")
        if key.count(part) > 1:
            raise _wrong(name, f"key {part} is given twice")
    if len({part.startswith("/") for part in key}) > 1:
        raise _wrong(name, f"key {', '.join(key)} mixes columns and JSON pointers")
    return tuple(key)


def _checked_delay(name: str, delay: object) -> float:
    """Seconds, in whole milliseconds. A clock of our times and any delay fit a clock together."""
    try:
        return milliseconds(delay, "read_delay") / 1000  # type: ignore[arg-type]
    except UserError as error:
        raise _wrong(name, " ".join(str(error).partition("\n  to fix")[0].split())) from error


def _check_times(binding: Binding) -> None:
    name = binding.name
    low, high = binding.not_before_ms, binding.not_after_ms
    for what, moment in (("not_before_ms", low), ("not_after_ms", high)):
        if moment is not None and not 0 <= moment <= _MOMENT_MS_MAX:
            raise _wrong(name, f"{what} {moment} is no moment that a clock can tell")
    if low is not None and high is not None and low > high:
        raise _wrong(name, f"not_before_ms {low} is after not_after_ms {high}")


def _wrong(name: str, why: str) -> UserError:
    return UserError(
        f"binding {name} cannot be read\n  {why}\n"
        "  to fix: give it the fields that docs/reads.md lists"
    )


def _moment(unix_ms: int) -> Clock:
    return clock_at(unix_ms * _NS_PER_MS)


def _plain(value: str | Sequence[str]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)
