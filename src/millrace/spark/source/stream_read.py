"""Which coordinated read a streaming query reads, from its options."""

from __future__ import annotations

import json
import os
from typing import Final

from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import check_name
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.read_files import resolve_read
from millrace.reads.session.checkpoint_store import stored_read
from millrace.spark.source.source_options import SourceOptions

_FILES: Final = (".toml", ".json")


def find_read(options: SourceOptions, broker: Broker) -> CoordinatedRead:
    """The coordinated read of the options: a file, JSON, the name of one that ran, or a journal."""
    if options.journal is not None:
        return _of_journal(options.journal, options.name)
    given = options.read
    if given is None:
        raise UserError("a stream needs a read or a journal\n  to fix: give one as an option")
    if given.lstrip().startswith("{"):
        return _of_json(given)
    if given.endswith(_FILES) or os.path.isfile(given):
        return resolve_read(given)
    read = stored_read(broker, given)
    if read is None:
        raise UserError(
            f"workspace {options.path} has no coordinated read {given}, and there is no such file\n"
            "  to fix: give a TOML or JSON file, JSON, or the name of a coordinated read that ran"
        )
    return read


def _of_journal(journal: str, name: str | None) -> CoordinatedRead:
    if not name:
        raise UserError(
            f"the stream of journal {journal} has no name\n  to fix: .option('name', ...): how far "
            "it has read is kept under it, so each query needs its own"
        )
    return CoordinatedRead(name, [Binding(name="journal", prefix=check_name(journal))])


def _of_json(text: str) -> CoordinatedRead:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UserError(
            f"option read is no JSON: {error}\n  found: {text[:80]}\n"
            "  to fix: write the coordinated read as docs/reads.md shows"
        ) from error
    return CoordinatedRead.from_dict(content)
