"""Whether the journals of a coordinated read can be read together: their columns and keys. Pure."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from millrace.errors import SchemaMismatch, UserError
from millrace.journal.core.row_format import CLOCK, OFFSET, PRODUCER, first_difference
from millrace.journal.core.values import JournalInfo
from millrace.keys.key_columns import key_names
from millrace.reads.model.coordinated_read import Binding
from millrace.reads.model.tags import TAG

STAGED_FIELDS: Final = (
    pa.field(TAG, pa.int64()),
    pa.field(PRODUCER, pa.int64()),
    pa.field(CLOCK, pa.uint64()),
    pa.field(OFFSET, pa.int64()),
)
"""The system columns that every staged row has."""


class ColumnChecks:
    """Remembers the columns that were seen, and refuses journals that do not fit them.

    Journals of one binding have the same columns. A column that several bindings have is of one
    type in all of them, since their rows come out in one table.
    """

    def __init__(self) -> None:
        self._of_binding: dict[str, tuple[str, pa.Schema]] = {}
        self._types: dict[str, tuple[str, pa.DataType]] = {}

    def check(self, binding: Binding, journal: JournalInfo) -> None:
        """Take a journal in, or say why it cannot be read with the others."""
        known = self._of_binding.get(binding.name)
        if known is None:
            self._check_key(binding, journal)
            self._check_types(binding, journal)
            self._of_binding[binding.name] = (journal.name, journal.schema)
            return
        where, schema = known
        if schema is not journal.schema and not schema.equals(journal.schema):
            raise SchemaMismatch(
                f"journals of binding {binding.name} have different columns\n"
                f"  {journal.name}: {first_difference(journal.schema, schema)}\n"
                f"  expected as in {where}\n  to fix: read them under bindings of their own"
            )

    def schema(self) -> pa.Schema:
        """The columns of rows that were staged: the system's, then those of all bindings."""
        users = [pa.field(name, kind) for name, (_, kind) in self._types.items()]
        return pa.schema([*STAGED_FIELDS, *users])

    def _check_key(self, binding: Binding, journal: JournalInfo) -> None:
        if binding.key and not binding.key[0].startswith("/"):
            try:
                key_names(journal.schema, tuple(binding.key))
            except UserError as error:
                raise type(error)(
                    f"binding {binding.name} cannot share journal {journal.name} by its key\n"
                    f"  {error}"
                ) from error

    def _check_types(self, binding: Binding, journal: JournalInfo) -> None:
        for field in journal.schema:
            where, kind = self._types.setdefault(field.name, (binding.name, field.type))
            if kind != field.type:
                raise SchemaMismatch(
                    f"column {field.name!r} is {field.type} under binding {binding.name} and "
                    f"{kind} under {where}\n  to fix: read them as coordinated reads of their own"
                )
