"""The text that a row is asked with: a template whose fields are columns. Pure.

`{title}` is the value of a column, `{{` a brace. A field has no format, no attribute and no index:
so a text of a row never decides what is shown.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.errors import UserError
from millrace.text import did_you_mean

Parts = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template: texts, each with the column behind it."""

    text: str
    parts: Parts

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it shows, each once."""
        return tuple(dict.fromkeys(name for _, name in self.parts if name is not None))

    def of(self, row: Mapping[str, Any]) -> str:
        """The text of a row."""
        pieces = []
        for text, name in self.parts:
            pieces.append(text)
            if name is not None:
                pieces.append(_shown(row[name]))
        return "".join(pieces)


def template_of(call: str, what: str, text: object, columns: Iterable[str]) -> Template:
    """A template over these columns; an error if it names others."""
    if not isinstance(text, str) or not text:
        raise UserError(f"{call}: {what} is {text!r}\n  to fix: give a text such as '{{title}}'")
    known = list(columns)
    parts = []
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        raise UserError(
            f"{call}: {what} is no template\n  found: {error}\n"
            "  to fix: write a column as {name}, and a brace as {{ or }}"
        ) from None
    for literal, name, form, conversion in parsed:
        if name is not None and (form or conversion or name not in known):
            raise _wrong(call, what, name, form, conversion, known)
        parts.append((literal, name))
    return Template(text, tuple(parts))


def _wrong(
    call: str, what: str, name: str, form: str | None, conversion: str | None, known: list[str]
) -> UserError:
    if name in known:
        return UserError(
            f"{call}: {what} has a format behind column {name!r}\n"
            f"  found: {'!' + conversion if conversion else ':' + str(form)}\n"
            "  to fix: format it in a step before, with select()"
        )
    return UserError(
        f"{call}: {what} shows {'{' + name + '}'}, which is no column\n"
        f"  found: {', '.join(known)}\n"
        f"  to fix: {did_you_mean(name, known, 'use one of these; write a brace as {{ or }}')}"
    )


def _shown(value: Any) -> str:  # noqa: ANN401 - anything that Arrow gives for a value
    """A value as a reader of the question sees it; nothing for null."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case dict() | list():
            return json.dumps(value, default=str, ensure_ascii=False)
        case _:
            return str(value)
