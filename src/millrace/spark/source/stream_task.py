"""Which task a streaming query reads, from its options."""

from __future__ import annotations

import json
import os
from typing import Final

from millrace.errors import UserError
from millrace.journal.contract import Broker
from millrace.journal.names import check_name
from millrace.reads.session.store import read_task
from millrace.reads.task import Binding, Task
from millrace.reads.task_files import task_of
from millrace.spark.source.options import Options

_FILES: Final = (".toml", ".json")


def find_task(options: Options, broker: Broker) -> Task:
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


def _of_journal(journal: str, name: str | None) -> Task:
    if not name:
        raise UserError(
            f"the stream of journal {journal} has no name\n  to fix: .option('name', ...): how far "
            "it has read is kept under it, so each query needs its own"
        )
    return Task(name, [Binding(name="journal", prefix=check_name(journal))])


def _of_json(text: str) -> Task:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise UserError(
            f"option task is no JSON: {error}\n  found: {text[:80]}\n"
            "  to fix: write the task as docs/reads.md shows"
        ) from error
    return Task.from_dict(content)
