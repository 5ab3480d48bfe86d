"""How the columns of one file become the columns of its table. Pure.

A table of a table format changes its columns and leaves its files as they are. So a column can have
another name in a file, a narrower type, other fields inside, or be missing. Invariant: a column is
found in a file by what the table says identifies it, and a file whose columns do not fit is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import UserError
from millrace.identity.schemas import plain_type

FIELD_ID: Final = b"PARQUET:field_id"
FieldIds = Literal["if there", "always", "never"]
"""Whether columns are found by the ids in the files, or by names."""
_ADVICE: Final = "rewrite the file with a tool of the table format, or read the table with Spark"


class DeletedRows(Protocol):
    """Rows of a file that the table no longer has. It is pickled with the task that reads them."""

    def identity(self) -> list[Any]:
        """What tells these rows from every other, for reuse."""

    def positions(self) -> npt.NDArray[np.int64]:
        """Their numbers in the file, from 0, sorted, each once. The task asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableField:
    """A column of a table, or a part of one.

    `parts` are the fields of a struct, the element of a list, or the key and the value of a map.
    `names` are its names in files that are not read by ids; empty: its own name.
    """

    name: str
    type: pa.DataType
    id: int | None = None
    names: tuple[str, ...] = ()
    parts: tuple[TableField, ...] = ()
    required: bool = False
    default: Any = None
    """Its value in files that were written before it was added."""


@dataclass(frozen=True, slots=True)
class FromFile:
    """A column that the file has, under this name. `parts` are as those of `TableField`.

    Without parts, the values are the file's, in `type`.
    """

    name: str
    type: pa.DataType
    parts: tuple[FromFile | Filled, ...] = ()


@dataclass(frozen=True, slots=True)
class Filled:
    """A column that the file has not: one value in all rows."""

    value: Any
    type: pa.DataType


ColumnSource = FromFile | Filled


@dataclass(frozen=True, slots=True)
class FileMapping:
    """Where each column of the table comes from in one file, and which rows are gone."""

    columns: Mapping[str, ColumnSource]
    deleted: DeletedRows | None = None

    def identity(self, columns: Sequence[str] | None, partition: Sequence[Any]) -> dict[str, Any]:
        """What decides the rows beside the file, if these columns are read of it."""
        names = list(self.columns) if columns is None else columns
        sources = {name: self.columns[name] for name in names if name in self.columns}
        changed = {
            name: _shown(source) for name, source in sources.items() if _differs(name, source)
        }
        return {
            **({"columns": changed} if changed else {}),
            **({"partition": [repr(value) for value in partition]} if partition else {}),
            **({"deleted": self.deleted.identity()} if self.deleted is not None else {}),
        }


def map_columns(
    fields: Sequence[TableField],
    file_schema: pa.Schema,
    *,
    ids: FieldIds,
    constants: Mapping[str, Any],
    path: str,
) -> dict[str, ColumnSource]:
    """Where each column comes from in a file with these columns.

    `constants` are values that the table itself has for columns that are missing in the file.
    """
    by_id = ids == "always" or (ids == "if there" and any(map(_has_id, file_schema)))
    match = _Match(by_id=by_id, path=path)
    found = match.fields(fields, list(file_schema), "")
    for field in fields:
        if isinstance(found[field.name], Filled) and field.name in constants:
            found[field.name] = Filled(constants[field.name], field.type)
        elif found[field.name] == Filled(None, field.type) and field.required:
            raise match.refused(
                field.name, "the table requires it, and the file has no such column"
            )
    return found


@dataclass(frozen=True, slots=True)
class _Match:
    """Finds the fields of a table in one file."""

    by_id: bool
    path: str

    def fields(
        self, wanted: Sequence[TableField], there: Sequence[pa.Field], where: str
    ) -> dict[str, ColumnSource]:
        """Each field by its name in the table."""
        found: dict[str, ColumnSource] = {}
        for field in wanted:
            matches = [one for one in there if self._is(field, one)]
            if len(matches) > 1:
                named = ", ".join(one.name for one in matches)
                raise self.refused(
                    where + field.name, f"several columns of the file are it: {named}"
                )
            found[field.name] = (
                self._taken(field, matches[0], where + field.name)
                if matches
                else Filled(field.default, field.type)
            )
        return found

    def _is(self, field: TableField, there: pa.Field) -> bool:
        if self.by_id:
            return field.id is not None and _id(there) == field.id
        return there.name in (field.names or (field.name,))

    def _taken(self, field: TableField, there: pa.Field, where: str) -> FromFile:
        have = plain_type(there.type)
        if not field.parts:
            if not can_become(have, field.type):
                raise self.refused(where, f"it is {have} in the file and {field.type} in the table")
            return FromFile(there.name, field.type)
        parts = self._parts(field, there.type, where)
        # Equal types have equal names in one order, but two fields may have changed their names.
        by_name = not pt.is_struct(field.type) or [part.name for part in field.parts] == [
            part.name for part in parts if isinstance(part, FromFile)
        ]
        if have == field.type and by_name and all(map(_is_plain, parts)):
            return FromFile(there.name, field.type)
        return FromFile(there.name, field.type, tuple(parts))

    def _parts(self, field: TableField, have: pa.DataType, where: str) -> list[ColumnSource]:
        kind = field.type
        if pt.is_struct(kind) and pt.is_struct(have):
            inside = self.fields(field.parts, list(have), f"{where}.")
            for part in field.parts:
                if inside[part.name] == Filled(None, part.type) and part.required:
                    raise self.refused(
                        f"{where}.{part.name}", "the table requires it, and the file has it not"
                    )
            return list(inside.values())
        if pt.is_map(kind) and pt.is_map(have):
            pairs = zip(field.parts, (have.key_field, have.item_field), strict=True)
            return [self._taken(part, there, f"{where}.{part.name}") for part, there in pairs]
        if _is_list(kind) and _is_list(have):
            return [self._taken(field.parts[0], have.value_field, f"{where}.element")]
        raise self.refused(where, f"it is {have} in the file and {kind} in the table")

    def refused(self, column: str, why: str) -> UserError:
        """The error for a column that does not fit."""
        return UserError(
            f"column {column!r} of a table cannot be read from one of its files\n"
            f"  found: {why}, in {self.path}\n  to fix: {_ADVICE}"
        )


def can_become(have: pa.DataType, kind: pa.DataType) -> bool:
    """Whether every value of a type in a file is a value of a column's type, as formats allow."""
    if have == kind:
        return True
    if pt.is_decimal(kind):
        return bool(
            pt.is_decimal(have) and have.scale == kind.scale and have.precision <= kind.precision
        )
    if pt.is_timestamp(kind):
        if pt.is_date(have):
            return kind.tz is None
        return bool(pt.is_timestamp(have) and (have.tz is None or have.tz in _UTC))
    return any(is_kind(kind) and is_have(have) for is_kind, is_have in _WIDER)


_UTC: Final = frozenset({"UTC", "+00:00", "Etc/UTC", "Z"})
_NARROW: Final = frozenset({pa.int8(), pa.int16(), pa.uint8(), pa.uint16()})
_WIDER: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], bool]], ...]] = (
    (pt.is_int32, lambda have: have in _NARROW),
    (pt.is_int64, lambda have: have in _NARROW or have in (pa.int32(), pa.uint32())),
    (pt.is_int16, pt.is_int8),
    (pt.is_float32, pt.is_float16),
    (pt.is_float64, lambda have: pt.is_float16(have) or pt.is_float32(have)),
    (pt.is_string, pt.is_large_string),
    (pt.is_large_string, pt.is_string),
    (pt.is_binary, lambda have: pt.is_large_binary(have) or pt.is_fixed_size_binary(have)),
    (pt.is_large_binary, lambda have: pt.is_binary(have) or pt.is_fixed_size_binary(have)),
    (pt.is_date32, pt.is_date64),
)
"""Kinds of columns, and the kinds in files that can become them without a change of a value."""


def _is_plain(source: ColumnSource) -> bool:
    """Whether a part is the file's as it is, under whatever name."""
    return isinstance(source, FromFile) and not source.parts


def _differs(name: str, source: ColumnSource) -> bool:
    """Whether a column is anything but the file's own of that name."""
    return isinstance(source, Filled) or source.name != name or bool(source.parts)


def _shown(source: ColumnSource) -> list[Any]:
    if isinstance(source, Filled):
        return ["filled", repr(source.value), str(source.type)]
    return ["taken", source.name, str(source.type), [_shown(part) for part in source.parts]]


def _has_id(field: pa.Field) -> bool:
    kind = field.type
    inside = [kind.field(number) for number in range(kind.num_fields)]
    return _id(field) is not None or any(map(_has_id, inside))


def _id(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))
