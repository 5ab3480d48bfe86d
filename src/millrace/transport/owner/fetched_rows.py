"""Rows that were read, on their way: of one journal, or of very many in few messages. Pure.

Rows as stored have no encodings left in them, so bare messages carry all of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Self

import msgspec
import pyarrow as pa

from millrace.errors import JournalUnknown, OffsetOutOfRange
from millrace.journal.core.committed_rows import RolledBackRange
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.number_ranges import Unsigned
from millrace.journal.core.row_bundles import Bundle, FileSpot, Format, ManyRows, TopicSpot
from millrace.journal.core.values import Fetched

_SCHEMAS_MAX: Final = 1024


@lru_cache(maxsize=_SCHEMAS_MAX)
def _format(data: bytes) -> Format:
    return Format.of(pa.ipc.read_schema(pa.py_buffer(data)))


class OneFetched(msgspec.Struct, frozen=True, kw_only=True, tag="Fetched"):
    """The rows read from one journal."""

    journal: str
    id: JournalId
    schema: pa.Buffer
    batches: tuple[pa.Buffer, ...]
    next_offset: Offset
    end_offset: Offset

    @classmethod
    def of(cls, fetched: Fetched) -> OneFetched:
        """The message with rows that were read."""
        return cls(
            journal=fetched.journal,
            id=fetched.id,
            schema=fetched.schema.serialize(),
            batches=tuple(batch.serialize() for batch in fetched.batches),
            next_offset=fetched.next_offset,
            end_offset=fetched.end_offset,
        )

    def fetched(self) -> Fetched:
        """The rows that were sent."""
        form = _format(self.schema.to_pybytes())
        return Fetched(
            journal=self.journal,
            id=self.id,
            schema=form.users,
            batches=tuple(pa.ipc.read_record_batch(data, form.stored) for data in self.batches),
            next_offset=self.next_offset,
            end_offset=self.end_offset,
        )


class _Problem(msgspec.Struct, frozen=True, array_like=True):
    """Why nothing could be read of a journal."""

    number: Unsigned
    """Which journal."""
    is_gone: bool
    """Whether the journal is unknown; otherwise it has no such offset."""
    text: str


class _SentBundle(msgspec.Struct, frozen=True, array_like=True):
    """See `Bundle`."""

    schema: Unsigned
    messages: pa.Buffer
    whose: list[int]
    begins: list[int]
    counts: list[int]


class _SentSpot(msgspec.Struct, frozen=True, array_like=True):
    """A `Bundle` whose messages are in a file."""

    before: Unsigned
    """How many bundles come before it."""
    schema: Unsigned
    spot: FileSpot
    whose: int
    begin: int
    count: int


class ManyFetched(msgspec.Struct, frozen=True, kw_only=True):
    """The rows read from many journals, in columns: there may be very many."""

    journals: list[str]
    ids: list[JournalId]
    schemas: list[int]
    """For each journal, which of `formats`."""
    formats: list[pa.Buffer]
    nexts: list[Offset]
    ends: list[Offset]
    problems: list[_Problem]
    bundles: list[_SentBundle]
    spots: list[_SentSpot] = []
    mixed: list[tuple[int, list[RolledBackRange]]] = []
    topics: list[tuple[int, TopicSpot]] = []

    @classmethod
    def of(cls, rows: ManyRows) -> Self:
        """The message with rows that were read."""
        schemas = _Schemas()
        return cls(
            journals=rows.journals,
            ids=rows.ids,
            schemas=[schemas.number(schema) for schema in rows.schemas],
            nexts=rows.nexts,
            ends=rows.ends,
            problems=[
                _Problem(number, isinstance(problem, JournalUnknown), str(problem))
                for number, problem in rows.problems.items()
            ],
            bundles=[
                _SentBundle(
                    schemas.number(bundle.format.users),
                    bundle.messages(),
                    bundle.whose,
                    bundle.begins,
                    bundle.counts,
                )
                for bundle in rows.bundles
                if bundle.spot is None
            ],
            spots=[
                _SentSpot(
                    before,
                    schemas.number(bundle.format.users),
                    bundle.spot,
                    bundle.whose[0],
                    bundle.begins[0],
                    bundle.counts[0],
                )
                for before, bundle in enumerate(rows.bundles)
                if bundle.spot is not None
            ],
            mixed=[(number, list(gone)) for number, gone in rows.mixed.items()],
            topics=list(rows.topics.items()),
            formats=schemas.written,
        )

    def fetched(self) -> ManyRows:
        """The rows that were sent, and where others are."""
        formats = [_format(data.to_pybytes()) for data in self.formats]
        rows = ManyRows(
            self.journals,
            self.ids,
            [formats[number].users for number in self.schemas],
            self.nexts,
            self.ends,
        )
        for problem in self.problems:
            kind = JournalUnknown if problem.is_gone else OffsetOutOfRange
            rows.problems[problem.number] = kind(problem.text)
        for sent in self.bundles:
            columns_of = (sent.whose, sent.begins, sent.counts)
            rows.bundles.append(Bundle(formats[sent.schema], [sent.messages], *columns_of))
        for away in self.spots:
            columns_of = ([away.whose], [away.begin], [away.count])
            bundle = Bundle(formats[away.schema], [], *columns_of, spot=away.spot)
            rows.bundles.insert(away.before, bundle)
        rows.mixed = {number: tuple(gone) for number, gone in self.mixed}
        rows.topics = dict(self.topics)
        return rows


class _Schemas:
    """Schemas that are sent once each; journals that follow each other mostly share one."""

    def __init__(self) -> None:
        self.written: list[pa.Buffer] = []
        self._last: pa.Schema | None = None

    def number(self, schema: pa.Schema) -> int:
        """Which of the schemas that are sent this is."""
        if self._last is None or not self._last.equals(schema, check_metadata=True):
            self._last = schema
            self.written.append(schema.serialize())
        return len(self.written) - 1
