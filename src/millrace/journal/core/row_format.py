"""The row format of journals: system fields beside the user's columns. Pure.

A stored row has the system fields first, under names that begin with `_mr_`, then the user's
columns. ACK rows have nulls in all of the user's columns, so there every stored column may be null;
what the journal's schema says about nulls is checked when rows are appended.

This format is final: a change of it is a new format version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NewType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import SchemaMismatch, UserError
from millrace.identity import schemas as plain
from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.number_ranges import Int64

ProducerId = NewType("ProducerId", Int64)
"""The writer of a row: 48 bits."""

FORMAT_VERSION: Final = 1
PRODUCER_MAX: Final = ProducerId(2**48 - 1)
PREFIX: Final = "_mr_"
OFFSET: Final = "_mr_offset"
PRODUCER: Final = "_mr_producer"
CLOCK: Final = "_mr_clock"
FLAG: Final = "_mr_flag"
HINTS: Final = "_mr_hints"
KEY: Final = "_mr_key"
TIMESTAMP: Final = "_mr_timestamp"
CHANGE_KIND: Final = "_mr_op"
"""A user's column in spite of its name: in changes "insert", "update" or "delete"."""
SOURCE_JOURNAL: Final = "_mr_from"
"""In rows by key of a job: the number of the journal that a row was in before."""
_OF_JOBS: Final = (CHANGE_KIND, SOURCE_JOURNAL)


class Flag(IntEnum):
    """How a row takes part in a transaction."""

    OUTSIDE = 0
    """It commits itself."""
    CONTINUE = 1
    """It is part of a transaction that an ACK ends."""
    ACK = 2
    """It ends a transaction in this journal: commit or rollback."""


OFFSET_FIELD: Final = pa.field(OFFSET, pa.int64(), nullable=False)
STAMP_FIELDS: Final = (
    pa.field(PRODUCER, pa.int64(), nullable=False),
    pa.field(CLOCK, pa.uint64(), nullable=False),
    pa.field(FLAG, pa.uint8(), nullable=False),
    pa.field(HINTS, pa.list_(pa.int64())),
    pa.field(KEY, pa.binary()),
    pa.field(TIMESTAMP, pa.timestamp("us", tz="UTC")),
)
SYSTEM_FIELDS: Final = (OFFSET_FIELD, *STAMP_FIELDS)
SYSTEM_COLUMNS: Final = len(SYSTEM_FIELDS)
BESIDE_FIELDS: Final = STAMP_FIELDS[4:]
"""What a user may give beside the rows: record keys and timestamps."""
_HINTS_TYPE: Final = STAMP_FIELDS[3].type
_TIMESTAMP_TYPE: Final = STAMP_FIELDS[5].type


def journal_schema(schema: pa.Schema) -> pa.Schema:
    """The schema a journal gets: encodings undone, no metadata, reserved names refused."""
    plain.check_names(schema)
    reserved = reserved_names(schema.names)
    if reserved or not schema.names:
        what = f"column {reserved[0]!r} has a reserved name" if reserved else "there is no column"
        fix = f"rename it: {PREFIX} is for system fields" if reserved else "give at least one"
        raise UserError(f"schema cannot be a journal's: {what}\n  to fix: {fix}")
    return pa.schema(
        [pa.field(f.name, plain.plain_type(f.type), nullable=f.nullable) for f in schema]
    )


def reserved_names(names: Sequence[str]) -> list[str]:
    """Names that a user's column cannot have."""
    return [name for name in names if name.startswith(PREFIX) and name not in _OF_JOBS]


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of the segments of a journal with this schema."""
    return pa.schema([*SYSTEM_FIELDS, *_nullable(schema)])


def stamped_schema(schema: pa.Schema) -> pa.Schema:
    """What `append_stamped` takes: stored rows that have no offset yet."""
    return pa.schema([*STAMP_FIELDS, *_nullable(schema)])


def first_difference(schema: pa.Schema, expected: pa.Schema) -> str | None:
    """The first field in which rows do not fit a schema, in words; None if they fit."""
    for field in expected:
        if field.name not in schema.names:
            return f"field {field.name!r} ({field.type}) is missing"
        index = schema.get_field_index(field.name)
        if index < 0:
            return f"field {field.name!r} is there more than once"
        kind = plain.plain_type(schema.field(index).type)
        if kind != field.type:
            return f"field {field.name!r} is {kind}, expected {field.type}"
    for index, name in enumerate(schema.names):
        if name not in expected.names:
            return f"field {name!r} is not in the journal's schema"
        if expected.names[index] != name:
            return f"field {name!r} stands where {expected.names[index]!r} is expected"
    return None


def check_schema(schema: pa.Schema, expected: pa.Schema, *, where: str) -> None:
    """Refuse rows whose columns are not the journal's, naming the first field that differs."""
    different = first_difference(schema, expected)
    if different is not None:
        raise SchemaMismatch(
            f"rows do not fit journal {where}\n  {different}\n"
            f"  to fix: give the columns {', '.join(expected.names)}, in this order"
        )


def conform(rows: pa.RecordBatch | pa.Table, schema: pa.Schema, *, where: str) -> pa.RecordBatch:
    """Rows as one batch in the journal's schema; anything that does not fit is refused."""
    check_schema(rows.schema, schema, where=where)
    batch = _one_batch(rows)
    batch = plain.conform(batch, _nullable(schema), where=where)
    for column, field in zip(batch, schema, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"rows do not fit journal {where}\n  field {field.name!r} has {column.null_count} "
                "nulls, and the journal's schema allows none\n  to fix: leave these rows out"
            )
    return batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What one producer writes on a run of rows: clocks rise by one from the first."""

    first_offset: Offset
    producer: ProducerId
    first_clock: Clock
    flag: Flag


def stamp_rows(
    rows: pa.RecordBatch,
    stamp: Stamp,
    *,
    keys: pa.Array | None = None,
    timestamps: pa.Array | None = None,
) -> pa.RecordBatch:
    """Put the system fields before conformed rows."""
    count = rows.num_rows
    first = stamp.first_offset
    system = [
        pa.array(np.arange(first, first + count, dtype=np.int64)),
        pa.array(np.full(count, stamp.producer, np.int64)),
        pa.array(np.arange(count, dtype=np.uint64) + np.uint64(stamp.first_clock)),
        pa.array(np.full(count, stamp.flag, np.uint8)),
        pa.nulls(count, _HINTS_TYPE),
        pa.nulls(count, pa.binary()) if keys is None else keys,
        pa.nulls(count, _TIMESTAMP_TYPE) if timestamps is None else timestamps,
    ]
    return pa.RecordBatch.from_arrays([*system, *rows.columns], schema=stored_schema(rows.schema))


def keyed_rows(
    rows: pa.RecordBatch, keys: pa.Array | None, timestamps: pa.Array | None
) -> pa.RecordBatch:
    """Conformed rows with their record keys and timestamps before them."""
    beside = [
        pa.nulls(rows.num_rows, field.type) if given is None else given
        for field, given in zip(BESIDE_FIELDS, (keys, timestamps), strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [*beside, *rows.columns], schema=pa.schema([*BESIDE_FIELDS, *rows.schema])
    )


def bare_rows(
    data: bytes | memoryview | pa.Buffer,
    schema: pa.Schema,
    stamp: Stamp,
    *,
    is_keyed: bool,
    begin: int = 0,
    count: int | None = None,
) -> pa.RecordBatch:
    """The stored form of a message with the user's columns, and record keys and timestamps.

    Of `count` rows from `begin` on; by default, of all.
    """
    users = _nullable(schema)
    beside = BESIDE_FIELDS if is_keyed else ()
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), pa.schema([*beside, *users]))
    batch = batch.slice(begin, count)
    keys, timestamps = batch.columns[: len(beside)] if is_keyed else (None, None)
    rows = pa.RecordBatch.from_arrays(batch.columns[len(beside) :], schema=users)
    first = replace(
        stamp,
        first_offset=Offset(stamp.first_offset + begin),
        first_clock=Clock(stamp.first_clock + begin),
    )
    return stamp_rows(rows, first, keys=keys, timestamps=timestamps)


def one_run(rows: pa.RecordBatch) -> tuple[ProducerId, Clock, Flag] | None:
    """The producer, first clock and flag of stamped rows, if these say all about their stamps."""
    if not rows.num_rows or rows[HINTS].null_count < rows.num_rows:
        return None
    producers, clocks, flags = (rows[name].to_numpy() for name in (PRODUCER, CLOCK, FLAG))
    first = clocks[0]
    rising = np.arange(len(clocks), dtype=np.uint64) + first
    if flags[0] == Flag.ACK or (flags != flags[0]).any() or (producers != producers[0]).any():
        return None
    if (clocks != rising).any():
        return None
    return ProducerId(int(producers[0])), Clock(int(first)), Flag(int(flags[0]))


def ack_row(
    schema: pa.Schema,
    *,
    offset: Offset,
    producer: ProducerId,
    clock: Clock,
    hints: Sequence[JournalId] | npt.NDArray[np.int64],
) -> pa.RecordBatch:
    """The row that ends a transaction in a journal and names its other journals."""
    named = pa.array(hints, pa.int64())
    system = [
        pa.array([offset], pa.int64()),
        pa.array([producer], pa.int64()),
        pa.array([clock], pa.uint64()),
        pa.array([Flag.ACK.value], pa.uint8()),
        pa.ListArray.from_arrays(pa.array([0, len(named)], pa.int32()), named),
        pa.nulls(1, pa.binary()),
        pa.nulls(1, _TIMESTAMP_TYPE),
    ]
    users = [pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays([*system, *users], schema=stored_schema(schema))


def stamped_rows(
    rows: pa.RecordBatch,
    *,
    producer: ProducerId,
    first_clock: Clock,
    flag: Flag,
    keys: pa.Array | None = None,
    timestamps: pa.Array | None = None,
) -> pa.RecordBatch:
    """What `append_stamped` takes, of conformed rows whose clocks rise by one from the first."""
    stamp = Stamp(first_offset=Offset(0), producer=producer, first_clock=first_clock, flag=flag)
    stored = stamp_rows(rows, stamp, keys=keys, timestamps=timestamps)
    return stored.select(stored.schema.names[1:])


def stamped_ack(
    schema: pa.Schema, *, producer: ProducerId, clock: Clock, hints: Sequence[JournalId]
) -> pa.RecordBatch:
    """What `append_stamped` takes to end a transaction in a journal."""
    stored = ack_row(schema, offset=Offset(0), producer=producer, clock=clock, hints=hints)
    return stored.select(stored.schema.names[1:])


def give_offsets(stamped: pa.RecordBatch, first_offset: Offset) -> pa.RecordBatch:
    """Complete rows that carry every system field but their offset."""
    count = stamped.num_rows
    offsets = pa.array(np.arange(first_offset, first_offset + count, dtype=np.int64))
    schema = pa.schema([OFFSET_FIELD, *stamped.schema])
    return pa.RecordBatch.from_arrays([offsets, *stamped.columns], schema=schema)


def check_stamped(
    rows: pa.RecordBatch | pa.Table, schema: pa.Schema, *, where: str
) -> pa.RecordBatch:
    """Rows that bring their own producer, clock and flag, as one batch; odd ones are refused."""
    expected = stamped_schema(schema)
    check_schema(rows.schema, expected, where=where)
    batch = plain.conform(_one_batch(rows), _nullable(expected), where=where)
    for field in STAMP_FIELDS[:3]:
        if batch[field.name].null_count:
            raise SchemaMismatch(
                f"rows do not fit journal {where}\n  {field.name} has nulls\n"
                "  to fix: fill them, or leave these rows out"
            )
    producers, flags = batch[PRODUCER].to_numpy(), batch[FLAG].to_numpy()
    clocks = batch[CLOCK].to_numpy()
    if ((producers < 0) | (producers > PRODUCER_MAX)).any():
        raise UserError(
            f"a producer of these rows for {where} does not fit 48 bits\n"
            "  to fix: use a producer that `producer_id()` made"
        )
    if (flags > Flag.ACK).any():
        raise UserError(
            f"a flag of these rows for {where} is too large\n"
            f"  found: above {Flag.ACK.value}\n  to fix: use one of the values of Flag"
        )
    if ((clocks == 0) & (flags != Flag.ACK)).any():
        raise UserError(
            f"a row for {where} has clock 0, which is before every row\n"
            "  to fix: take clocks from the producer"
        )
    if (~batch[HINTS].is_null().to_numpy(zero_copy_only=False) & (flags != Flag.ACK)).any():
        raise UserError(
            f"a row for {where} has hints and is no ACK\n  to fix: give hints to ACKs alone"
        )
    return pa.RecordBatch.from_arrays(batch.columns, schema=expected)


def check_keys(keys: pa.Array | None, rows: int) -> pa.Array | None:
    """Record keys as binary, one for each row."""
    return _beside(keys, rows, pa.binary(), "keys")


def check_timestamps(timestamps: pa.Array | None, rows: int) -> pa.Array | None:
    """Record timestamps in microseconds UTC, one for each row."""
    return _beside(timestamps, rows, _TIMESTAMP_TYPE, "timestamps")


def user_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The user's columns of stored rows, in the journal's own schema; no ACK may be among them."""
    columns = rows.columns[SYSTEM_COLUMNS:]
    return pa.Table.from_arrays(columns, schema=schema)


def _beside(given: pa.Array | None, rows: int, kind: pa.DataType, what: str) -> pa.Array | None:
    if given is None:
        return None
    if isinstance(given, pa.ChunkedArray):
        given = given.combine_chunks()
    if len(given) != rows:
        raise UserError(f"{len(given)} {what} for {rows} rows\n  to fix: give one for each row")
    try:
        return given.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"{what} are {given.type}, expected {kind}\n  {error}\n  to fix: cast them"
        ) from error


def _one_batch(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    if isinstance(rows, pa.RecordBatch):
        return rows
    batches = rows.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in rows.schema], schema=rows.schema
        )
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])
