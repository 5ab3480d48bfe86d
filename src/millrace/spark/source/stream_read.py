"""Which task a streaming query reads, from its options."""

from __future__ import annotations

import json
import os
from typing import Final

from millrace.errors import UserError
from millrace.journal.broker import Broker
from millrace.journal.core.journal_names import check_name
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.read_files import task_of
from millrace.reads.session.checkpoint_store import read_task
from millrace.spark.source.source_options import SourceOptions

_FILES: Final = (".toml", ".json")


def find_task(options: SourceOptions, broker: Broker) -> CoordinatedRead:
    """The task that is meant: a file, JSON, the name of one read before, or just a journal."""
    if options.journal is not None:
        return _of_journal(options.journal, options.name)
    given = options.task
    if given is None:
        raise UserError("a stream reads a task or a journal\n  to fix: give one as an option")
    if given.lstrip().startswith("{"):
        return _of_json(given)
    if given.endswith(_FILES) or os.path.isfile(given):
        return task_of(given)
    found = read_task(broker, given)
    if found is None:
        raise UserError(
            f"workspace {options.path} has no task {given}, and there is no such file\n"
            "  to fix: give a TOML or JSON file, JSON, or the name of a task that was read"
        )
    return found


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
            f"option task is no JSON: {error}\n  found: {text[:80]}\n"
            "  to fix: write the task as docs/reads.md shows"
        ) from error
    return CoordinatedRead.from_dict(content)
