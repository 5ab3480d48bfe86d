"""What a prompt step asks for a row, and the row that it makes of the answer. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from millrace.llm.json_answers import beyond_columns, first_complaint, parsed, resolved
from millrace.llm.model_questions import Answer, Image, Question, Repair
from millrace.llm.models import Model
from millrace.llm.output_schema import columns_of
from millrace.llm.templates import Template

Row = dict[str, Any]
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_RIFF: Final = (b"RIFF", b"WEBP")


@dataclass(frozen=True, slots=True)
class Unfit:
    """An answer that gives no row, and why."""

    answer: str
    complaint: str
    repairable: bool
    """Whether the model may do better when it is told why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The questions of a prompt step."""

    model: Model
    template: Template
    system: str = ""
    schema: Mapping[str, Any] | None = None
    is_strict: bool = False
    validator: type | None = None
    """A model of pydantic that answers have to pass as well."""
    images: tuple[str, ...] = ()
    """Columns with images: bytes or URLs."""
    keep: tuple[str, ...] = ()
    """Columns of the row that the new row has as well."""
    column: str = "answer"
    """The column of an answer without a schema."""

    def identity(self) -> str:
        """A digest of everything that decides an answer, and the columns of the row.

        The fields of a schema are written in their order.
        """
        parts = [
            self.model.identity(),
            self.template.text,
            self.system,
            None if self.schema is None else json.dumps(self.schema),
            self.images,
            self.keep,
            self.column if self.schema is None else None,
        ]
        text = json.dumps(parts, sort_keys=True)
        return f"prompt {hashlib.blake2b(text.encode(), digest_size=20).hexdigest()}"

    def question(self, row: Mapping[str, Any], repair: Repair | None = None) -> Question:
        """What the model is asked for a row; `ValueError` for an image that is none."""
        return Question(
            text=self.template.of(row),
            system=self.system,
            images=tuple(
                image_of(row[name], name) for name in self.images if row[name] is not None
            ),
            schema=self.schema,
            is_strict=self.is_strict,
            repair=repair,
        )

    def answered(self, row: Mapping[str, Any], answer: Answer) -> Row | Unfit:
        """The row that an answer makes, or why it makes none."""
        if answer.ended == "refused":
            return Unfit(answer.text, "the model refused to answer", repairable=False)
        kept = {name: row[name] for name in self.keep}
        if answer.ended == "length":
            complaint = "the answer was cut off: it is longer than max_tokens allows"
            return Unfit(answer.text, complaint, repairable=False)
        if self.schema is None:
            return {**kept, self.column: answer.text}
        value, complaint = parsed(answer.text)
        complaint = complaint or first_complaint(dict(self.schema), value) or beyond_columns(value)
        if not complaint:
            value, complaint = self._converted(value)
            complaint = complaint or beyond_columns(value) or self._no_columns(value)
        if complaint:
            return Unfit(answer.text, complaint, repairable=True)
        return {**kept, **{name: value.get(name) for name in _fields(self.schema)}}

    def _no_columns(self, value: Row) -> str:
        """Why Arrow's columns cannot hold a value that has the schema; empty if they can.

        1e300 is a whole number in JSON.
        """
        try:
            pa.RecordBatch.from_pylist([value], columns_of("prompt", dict(self.schema or {})))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            return f"no column can hold it: {error}"
        return ""

    def _converted(self, value: Any) -> tuple[Any, str]:  # noqa: ANN401 - JSON
        """The value as the model of pydantic has it, or what it complains of."""
        validate = getattr(self.validator, "model_validate", None)
        if validate is None:
            return value, ""
        try:
            valid: Any = validate(value)
            own = set(type(valid).model_fields)
            made = valid.model_dump(mode="json", by_alias=True, include=own)
        except ValueError as error:
            return None, str(error)
        # What its validators made has to fit the columns, too.
        return made, first_complaint(dict(self.schema or {}), made)


def image_of(value: Any, column: str) -> Image:  # noqa: ANN401 - bytes, a URL or a large value
    """An image of a question from the value of a column."""
    if isinstance(value, str):
        if not value.startswith(("https://", "http://", "data:image/")):
            raise ValueError(f"column {column!r} is no image: it is no URL: {value[:40]!r}")
        return Image(url=value)
    data: bytes = value if isinstance(value, bytes) else value.read()
    kind = next((kind for magic, kind in _MAGIC if data.startswith(magic)), "")
    if data[:4] == _RIFF[0] and data[8:12] == _RIFF[1]:
        kind = "image/webp"
    if not kind:
        raise ValueError(f"column {column!r} is no image: it is no PNG, JPEG, GIF or WebP")
    return Image(media_type=kind, base64=base64.b64encode(data).decode())


def _fields(schema: Mapping[str, Any]) -> list[str]:
    return list(resolved(dict(schema), dict(schema)).get("properties", {}))
