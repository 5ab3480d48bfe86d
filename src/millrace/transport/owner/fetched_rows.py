"""Rows that were read, on the wire: of one journal, or of very many in few messages. Pure.

Rows as stored have no encodings left in them, so bare messages carry all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.core.journal_names import Offset
from millrace.journal.core.row_bundles import Bundle, Format, Packed
from millrace.journal.core.values import Fetched
from millrace.transport.owner.wire_shapes import ArrowParts, WireShape

_SCHEMAS_MAX: Final = 1024


@lru_cache(maxsize=_SCHEMAS_MAX)
def _format(data: bytes) -> Format:
    return Format.of(pa.ipc.read_schema(pa.py_buffer(data)))


def _put_one(value: Fetched, parts: ArrowParts) -> list[Any]:
    head = [value.journal, value.id, parts.add_schema(value.schema)]
    ends = [value.next_offset, value.end_offset]
    return [*head, *ends, [parts.add(batch.serialize()) for batch in value.batches]]


def _take_one(value: Sequence[Any], parts: ArrowParts) -> Fetched:
    journal, id_, number, next_offset, end_offset, batches = value
    form = _format(parts.get(number).to_pybytes())
    return Fetched(
        journal=journal,
        id=id_,
        schema=form.users,
        batches=tuple(pa.ipc.read_record_batch(parts.get(each), form.stored) for each in batches),
        next_offset=next_offset,
        end_offset=end_offset,
    )


FETCHED: Final = WireShape(_put_one, _take_one)
"""What was read of one journal."""


def _put_many(packed: Packed, parts: ArrowParts) -> dict[str, Any]:
    heads = packed.heads
    return {
        "journals": [head.journal for head in heads],
        "ids": [head.id for head in heads],
        "schemas": [parts.add_schema(head.schema) for head in heads],
        "nexts": [head.next_offset for head in heads],
        "ends": [head.end_offset for head in heads],
        "problems": [
            [place, type(head.problem).__name__, str(head.problem)]
            for place, head in enumerate(heads)
            if head.problem is not None
        ],
        "bundles": [
            [
                parts.add_schema(bundle.format.users),
                parts.add(pa.py_buffer(b"".join(bundle.parts))),
                *(bundle.whose, bundle.begins, bundle.counts),
            ]
            for bundle in packed.bundles
        ],
    }


def _take_many(value: dict[str, Any], parts: ArrowParts) -> dict[str, Fetched]:
    names: list[str] = value["journals"]
    numbers = {*value["schemas"], *(bundle[0] for bundle in value["bundles"])}
    formats = {number: _format(parts.get(number).to_pybytes()) for number in numbers}
    columns = (value["ids"], value["schemas"], value["nexts"], value["ends"])
    packed = Packed()
    packed.heads = [
        Fetched(
            journal=name,
            id=id_,
            schema=formats[schema].users,
            batches=(),
            next_offset=next_,
            end_offset=end,
        )
        for name, id_, schema, next_, end in zip(names, *columns, strict=True)
    ]
    for place, kind, text in value["problems"]:
        packed.heads[place] = _failed(names[place], value["nexts"][place], kind, text)
    for schema, data, whose, begins, counts in value["bundles"]:
        packed.bundles.append(Bundle(formats[schema], [parts.get(data)], whose, begins, counts))
    return {each.journal: each for each in packed.unpacked()}


def _failed(name: str, offset: int, kind: str, text: str) -> Fetched:
    problems = {each.__name__: each for each in (JournalUnknown, OffsetOutOfRange)}
    return Fetched.failed(name, Offset(offset), problems[kind](text))


FETCHED_MANY: Final = WireShape(_put_many, _take_many)
"""What was read of many journals: goes in as it is packed, comes out by name."""
