"""Checks column names and keys of a user's call; errors name the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from millrace.errors import UserError
from millrace.keys import HashPartitioner
from millrace.sql.sql_mode import folded
from millrace.text import did_you_mean, listed

Named = TypeVar("Named", bound=tuple[str, object])
Value = TypeVar("Value")


def name_list(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name, several, or none."""
    if given is None:
        return ()
    names: object = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"columns are named by text\n  found: {given!r}\n"
            "  to fix: give the name of a column, or a list of names"
        )
    return tuple(names)


def check_unique_labels(labels: Sequence[str], call: str) -> None:
    """Files cannot have two columns of one name, in any case."""
    lowered = [folded(label) for label in labels]
    doubled = [label for label in labels if lowered.count(folded(label)) > 1]
    if doubled:
        raise UserError(
            f"{call}: there are two columns of one name\n  found: {', '.join(doubled)}\n"
            "  to fix: give one of them another name, as with toDF or rename"
        )


def named_texts(
    method: str, mapping: Mapping[str, Value] | None, keywords: Mapping[str, Value]
) -> tuple[dict[str, Value], str]:
    """Values by column name, of a mapping and keywords together; and the call, for messages."""
    if mapping is not None and not isinstance(mapping, Mapping):
        raise UserError(
            f"{method} takes a mapping of names to texts, or keywords\n  found: {mapping!r}\n"
            f'  to fix: {method}({{"a name": "..."}}), or {method}(name="...")'
        )
    named = {**(mapping or {}), **keywords}
    shown = [f"{dict(mapping)!r}"] if mapping else []
    call = f"{method}({', '.join([*shown, *(f'{k}={v!r}' for k, v in keywords.items())])})"
    check_names_are_text(named, call)
    doubled = [name for name in mapping or {} if name in keywords]
    if doubled:
        raise UserError(
            f"{call}: {doubled[0]!r} is in the mapping and a keyword\n  to fix: name it once"
        )
    return named, call


def check_names_are_text(names: Iterable[object], call: str) -> None:
    """New names of columns are texts that are not empty, without NUL."""
    for name in names:
        if not isinstance(name, str) or not name or "\0" in name:
            raise UserError(
                f"a column's name is text, in {call}\n  found: {name!r}\n"
                '  to fix: give it a name, as in rename(old="new")'
            )


def check_columns(schema: pa.Schema, names: Iterable[str], call: str) -> None:
    """Names must be columns."""
    for name in names:
        if name not in schema.names:
            raise UserError(
                f"there is no column {name!r}, in {call}\n"
                f"  found: columns {listed(schema.names)}\n"
                f"  to fix: {did_you_mean(str(name), schema.names, 'name one of these columns')}"
            )


def check_keys(schema: pa.Schema, keys: Sequence[str], call: str) -> None:
    """Keys are columns that can be hashed as Spark does, each named once."""
    check_columns(schema, keys, call)
    check_once(keys, call)
    if keys:
        HashPartitioner(keys, 1).check(schema)


def check_once(names: Sequence[str], call: str) -> None:
    """No name may come twice."""
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise UserError(f"{call}: {doubled[0]!r} is named twice\n  to fix: name it once")


def check_named_once(named: Sequence[Named], call: str) -> tuple[Named, ...]:
    """Columns with their names: at least one, and no name twice."""
    counts = Counter(name for name, _ in named)
    doubled = [name for name, count in counts.items() if count > 1]
    if doubled:
        raise UserError(f"{call}: two columns named {doubled[0]!r}\n  to fix: give one an AS name")
    if not named:
        raise UserError(f"{call} has no columns\n  to fix: name at least one")
    return tuple(named)


def check_rows(rows: object, call: str) -> None:
    """A number of rows is a whole number, 0 or more."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
        raise UserError(f"{call}: {rows!r} is not a number of rows\n  to fix: give 0 or more")


def free_name(name: str, names: Iterable[str], ending: str = "_right") -> str:
    """The name, with endings until none of `names` equals it in any case."""
    return distinct_names([name], names, ending)[0]


def distinct_names(
    wanted: Iterable[str], names: Iterable[str], ending: str = "_right"
) -> list[str]:
    """Each name with endings until none of `names`, and none before it, equals it in any case."""
    used = {_lowered(other) for other in names}
    out = []
    for name in wanted:
        free = name
        while _lowered(free) in used:
            free += ending
        used.add(_lowered(free))
        out.append(free)
    return out


def check_distinguishable(names: Sequence[str]) -> None:
    """No two names may differ in case alone: neither Spark nor DuckDB tells such apart."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(_lowered(name), name)
        if other != name:
            raise UserError(
                f"the columns {other!r} and {name!r} differ in case alone\n"
                "  to fix: give one of them another name, or select the other before"
            )


def _lowered(name: str) -> str:
    """Letters of ASCII in lower case: only those are alike for DuckDB."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)
