"""The options of `format("millrace")`: which there are, what they mean, and which go together.

Spark passes them as texts and ignores upper and lower case. Unknown options are refused, since a
misspelt option would silently read or write something else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from millrace.errors import UserError
from millrace.journal.core.journal_names import check_name
from millrace.names import check_text, path_text
from millrace.storage.objects.object_address import kind_of
from millrace.text import did_you_mean

Use = Literal["read", "write", "stream", "stream write"]

KNOWN: Final[Mapping[str, str]] = {
    "path": "the workspace's folder; `load(path)` and `save(path)` give it, too",
    "broker": "what keeps the journals, as in `millrace.open`; only if nobody has them open",
    "shuffle": "read the shuffle of this run's number or name, or write one under a new name",
    "stage": "of that run; 0 unless given",
    "journal": "read or write the journal of this name",
    "startOffset": "read from this offset of the journal on; its first one unless given",
    "endOffset": "and before this one; the end of its committed rows unless given",
    "job": "read the rows that a step of this job keeps",
    "step": "the step's name, or a source's",
    "read": "stream this coordinated read: a read file, JSON, or the name of one that ran before",
    "name": "under which a stream of a journal keeps how far it has read",
    "members": "how many partitions of Spark a stream has",
    "maxRowsPerTrigger": "about how many rows a micro-batch of a stream has at most",
    "maxBytesPerTrigger": "the same in bytes",
    "partitionRows": "how many offsets of a journal a partition of Spark reads",
    "keyBy": "write by these columns, separated by commas, into a shuffle or several journals",
    "journals": "their names, with {n} for the number, as in orders/{n}",
    "partitions": "how many partitions the shuffle has, or how many journals these are",
    "changedBatch": "fail, or keep, if a batch of a stream was written with another number of rows",
}
"""Every option and what it says; docs/spark.md lists them for users."""

_PRINTED: Final = re.compile(r".*\S.*")
_SPARKS_OWN: Final = frozenset(
    {
        "checkpointlocation",
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "owner",
        "provider",
        "queryname",
    }
)
"""What Spark hands on of its own: of streams, and of tables in a catalog."""
_TABLES_COPY: Final = "option."
"""Spark hands a table's options on twice, once with this before their names."""
_TABLES_PATH: Final = "location"
"""What Spark makes of a table's path."""
_SOURCES: Final[Mapping[Use, tuple[str, ...]]] = {
    "read": ("shuffle", "journal", "job"),
    "write": ("shuffle", "journal", "journals"),
    "stream": ("read", "journal"),
    "stream write": ("journal", "journals"),
}
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "stage": ("shuffle",),
    "startOffset": ("journal",),
    "endOffset": ("journal",),
    "step": ("job",),
    "keyBy": ("shuffle", "journals"),
    "partitions": ("shuffle", "journals"),
}
_PATHS: Final[Mapping[Use, str]] = {
    "read": (
        "load(path) or option('path', ...); a table in the catalog must be made without columns\n"
        "  and with its options, CREATE TABLE ... USING millrace OPTIONS (path '...', ...), or be\n"
        "  read with them, SELECT ... FROM ... WITH (path = '...', ...)"
    ),
    "write": (
        "save(path) or option('path', ...); Spark hands no options of a table in the catalog on:\n"
        "  use INSERT INTO ... WITH (path = '...', journal = '...'), or a temporary view"
    ),
    "stream": "load(path) or option('path', ...)",
    "stream write": "start(path) or option('path', ...)",
}
"""What to do if there is none."""
_BY_LOWER: Final = {name.lower(): name for name in KNOWN}
NUMBER: Final = "{n}"


_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _check_part(text: str) -> str:
    """Refuse a text that cannot be the name of a job or step."""
    return check_text(text, "a job or a step", pattern=_PART, allowed="letters, digits, _.-")


_CHECKS: Final[Mapping[str, Callable[[str], str]]] = {
    "journal": check_name,
    "job": _check_part,
    "step": _check_part,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of a user, checked."""

    path: str
    """The workspace's folder, whole."""
    broker: str | None = None
    shuffle: int | str | None = None
    """The number of a run, or the name of a shuffle."""
    stage: int = 0
    journal: str | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    job: str | None = None
    step: str | None = None
    read: str | None = None
    name: str | None = None
    members: int | None = None
    rows_max: int | None = None
    """The limit of a micro-batch."""
    bytes_max: int | None = None
    partition_rows: int | None = None
    key_by: tuple[str, ...] = ()
    partitions: int | None = None
    """The number of partitions, or of journals, that are written by key."""
    journals: tuple[str, ...] = ()
    """All names that are written by key."""
    keep_changed: bool = False
    """A stream's batch that was written stays, even if it comes again with other rows."""


def parse(given: Mapping[str, str], use: Use) -> SourceOptions:
    """Check options and give them their types; the first wrong one is named."""
    options = known(given)
    path = options.get("path")
    if not path:
        raise UserError(
            f"format millrace needs a workspace\n  found: no path\n  to fix: {_PATHS[use]}"
        )
    _check_source(options, use)
    for name, others in _NEEDS.items():
        if name in options and not any(other in options for other in others):
            whose = _listed(others)
            raise UserError(f"option {name} is for {whose}\n  to fix: give {whose}, too")
    if "job" in options and "step" not in options:
        raise UserError("option job is given without step\n  to fix: name one of its steps")
    for name, check in _CHECKS.items():
        if name in options:
            check(options[name])
    return SourceOptions(
        path=local_path(path_text(path, "format('millrace')")),
        broker=options.get("broker"),
        shuffle=_shuffle(options, use),
        stage=_number(options, "stage") or 0,
        journal=options.get("journal"),
        start_offset=_number(options, "startOffset"),
        end_offset=_number(options, "endOffset"),
        job=options.get("job"),
        step=options.get("step"),
        read=options.get("read"),
        name=options.get("name"),
        members=_number(options, "members", least=1),
        rows_max=_number(options, "maxRowsPerTrigger", least=1),
        bytes_max=_number(options, "maxBytesPerTrigger", least=1),
        partition_rows=_number(options, "partitionRows", least=1),
        key_by=_names(options.get("keyBy", "")),
        partitions=_number(options, "partitions", least=1),
        journals=_journals(options),
        keep_changed=_one_of(options, "changedBatch", ("fail", "keep")) == "keep",
    )


def known(given: Mapping[str, str]) -> dict[str, str]:
    """Options of this format, under their own names, without what Spark adds."""
    options = {_known(name): text for name, text in given.items() if not _is_sparks_own(name)}
    table_path = given.get(_TABLES_PATH)
    return {"path": table_path, **options} if table_path else options


def local_path(text: str) -> str:
    """A folder as users and Spark name it, whole; a part of a bucket as it is."""
    if kind_of(text) is not None:
        return text
    plain = text.removeprefix("file:")
    plain = "/" + plain.lstrip("/") if plain.startswith("//") else plain
    if "://" in plain:
        raise UserError(f"workspace {text} is not a folder\n  to fix: give a local or shared path")
    return os.path.abspath(os.path.expanduser(plain))


def _is_sparks_own(name: str) -> bool:
    return name.lower() in {*_SPARKS_OWN, _TABLES_PATH} or name.lower().startswith(_TABLES_COPY)


def _known(name: str) -> str:
    known = _BY_LOWER.get(name.lower())
    if known is None:
        raise UserError(
            f"format millrace has no option {name!r}\n  found: known are {', '.join(KNOWN)}\n"
            f"  to fix: {did_you_mean(name, KNOWN, 'use one of these')}"
        )
    return known


def _check_source(options: Mapping[str, str], use: Use) -> None:
    allowed = _SOURCES[use]
    every = {name for names in _SOURCES.values() for name in names}
    given = [name for name in KNOWN if name in every and name in options]
    if len(given) != 1 or given[0] not in allowed:
        raise UserError(
            f"a {use} of format millrace needs {_listed(allowed)}\n"
            f"  found: {', '.join(given) or 'none'}\n  to fix: give exactly one as an option"
        )


def _number(options: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise UserError(
            f"option {name} is {text!r}\n  to fix: give a whole number of at least {least}"
        )
    return int(text)


def _one_of(options: Mapping[str, str], name: str, values: Sequence[str]) -> str | None:
    text = options.get(name)
    if text is not None and text not in values:
        raise UserError(f"option {name} is {text!r}\n  to fix: give {_listed(values)}")
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _shuffle(options: Mapping[str, str], use: Use) -> int | str | None:
    """The shuffle of the options: digits are a run's number, made by the workspace alone."""
    if "shuffle" not in options:
        return None
    text = options["shuffle"].strip()
    keyed = [name for name in ("keyBy", "partitions") if name in options]
    if use == "read" and keyed:
        raise UserError(f"option {keyed[0]} is for writing a shuffle\n  to fix: leave it out")
    if use != "read" and text.isdecimal():
        raise UserError(
            f"shuffle {text} cannot be written: numbers are given out by the workspace\n"
            "  to fix: give a name, as in option('shuffle', 'orders-by-customer')"
        )
    if use != "read" and (
        keyed != ["keyBy", "partitions"] or not _names(options["keyBy"]) or "stage" in options
    ):
        raise UserError(
            f"shuffle {text!r} cannot be written by key\n"
            "  to fix: give keyBy and partitions, and no stage"
        )
    return int(text) if text.isdecimal() else _named(text)


def _named(text: str) -> str:
    return check_text(text, "a shuffle", pattern=_PRINTED, allowed="text that shows something")


def _journals(options: Mapping[str, str]) -> tuple[str, ...]:
    pattern = options.get("journals")
    if pattern is None:
        return ()
    count = _number(options, "partitions", least=1)
    if NUMBER not in pattern or count is None or not _names(options.get("keyBy", "")):
        raise UserError(
            f"journals {pattern!r} cannot be written by key\n"
            f"  to fix: name them with {NUMBER}, as in orders/{NUMBER}, and give keyBy and "
            "partitions"
        )
    return tuple(pattern.replace(NUMBER, str(number)) for number in range(count))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" or {names[-1]}"
