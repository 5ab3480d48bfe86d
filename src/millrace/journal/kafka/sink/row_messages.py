"""Rows as messages of a topic of others. Pure.

Invariant: a row is one message, in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from millrace.errors import UserError
from millrace.journal.kafka import message_rows
from millrace.journal.kafka.kafka_messages import Headers, KafkaMessage
from millrace.journal.kafka.sink.kafka_target import KafkaTarget, json_schema

ANY_PARTITION: Final = -1
"""Kafka's client chooses one: by the key if there is one, as Kafka's own client does."""


def messages_of(rows: pa.RecordBatch, target: KafkaTarget) -> Iterator[KafkaMessage]:
    """The messages of rows."""
    count = rows.num_rows
    values = _values(rows, target)
    keys = repeat(None, count) if target.key is None else _bytes(rows[target.key])
    partitions: Any = repeat(ANY_PARTITION, count)
    if target.partition is not None:
        partitions = pc.fill_null(rows[target.partition], ANY_PARTITION).to_pylist()
    headers: Any = repeat([], count)
    if target.headers is not None:
        headers = map(_headers, rows[target.headers].to_pylist())
    return map(KafkaMessage._make, zip(values, keys, headers, partitions, strict=True))


def check_rows(
    rows: pa.RecordBatch, target: KafkaTarget, partitions: int, bytes_max: int, *, where: str
) -> None:
    """Refuse rows that cannot be messages, before any of them is sent."""
    if target.value is None:
        message_rows.check_rows(_as_json(rows, target), bytes_max, where=where)
    else:
        largest = pc.max(pc.binary_length(rows[target.value])).as_py() or 0
        if largest > bytes_max:
            raise UserError(
                f"a value for {where} is too large for Kafka\n  found: {largest} bytes, "
                f"limit: {bytes_max} (kafka_message_bytes_max)\n"
                "  to fix: keep large values in files, or raise it here and in the cluster"
            )
    if target.partition is None:
        return
    given = rows[target.partition]
    lowest, highest = (pc.min_max(given)[end].as_py() for end in ("min", "max"))
    if lowest is not None and (lowest < 0 or highest >= partitions):
        bad = lowest if lowest < 0 else highest
        raise UserError(
            f"column {target.partition!r} for {where} names partition {bad}\n"
            f"  found: the topic has {partitions}, from 0 on\n"
            "  to fix: give one of them, or null to let the key decide"
        )


def _values(rows: pa.RecordBatch, target: KafkaTarget) -> Sequence[bytes | None]:
    if target.value is not None:
        return _bytes(rows[target.value])
    return message_rows.encode(_as_json(rows, target))


def _as_json(rows: pa.RecordBatch, target: KafkaTarget) -> pa.RecordBatch:
    return rows.select(json_schema(rows.schema, target).names)


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pt.is_string(column.type) or pt.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    values: list[bytes | None] = column.to_pylist()
    return values


def _headers(given: Sequence[Any] | None) -> Headers:
    pairs = ((one["key"], one["value"]) if isinstance(one, dict) else one for one in given or ())
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
