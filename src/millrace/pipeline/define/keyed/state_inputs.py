"""Checks of the rows that a state is made of, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from millrace.errors import UserError
from millrace.journal.core.row_format import CHANGE_KIND
from millrace.pipeline.core import job_model
from millrace.pipeline.define.job_graph import JobGraph
from millrace.pipeline.define.step_sinks import StepSinks
from millrace.pipeline.state.state_operators import KeyTotals, LatestRow, TimeWindows


def check_sides(
    call: str, graph: JobGraph, left: job_model.Anything, other: object
) -> tuple[str, ...]:
    """The keys of the other side; refuses sides that cannot be joined."""
    if not isinstance(other, StepSinks):
        raise UserError(f"{call} with a {type(other).__name__}\n  to fix: give a step by key")
    check_graph_of(call, graph, other)
    right = other._node  # noqa: SLF001 - for the package, not for users
    assert isinstance(left, job_model.KeyBy), "asked before"
    if not isinstance(right, job_model.KeyBy):
        raise UserError(
            f"{call}: the rows of {right.name!r} are not by key\n"
            "  to fix: write key_by(...) behind it"
        )
    check_key_types(call, (left.schema, left.keys), (right.schema, right.keys))
    return right.keys


def check_graph_of(call: str, graph: JobGraph, other: StepSinks) -> None:
    """Refuse a step of another job."""
    name, theirs = other._node.name, other._graph  # noqa: SLF001 - for the package, not for users
    if theirs is not graph:
        raise UserError(
            f"{call}: {name!r} is of job {theirs.job!r}, not of {graph.job!r}\n"
            "  to fix: give steps of one job; read another job's rows with source(journals=...)"
        )


def check_key_types(call: str, *sides: tuple[pa.Schema, Sequence[str]]) -> None:
    """Refuse keys of both sides that are not of the same types."""
    kinds = [[str(schema.field(key).type) for key in keys] for schema, keys in sides]
    if kinds[0] != kinds[1]:
        raise UserError(
            f"{call}: the keys of both sides have other types\n"
            f"  found: {', '.join(kinds[0])} and {', '.join(kinds[1])}\n"
            "  to fix: cast them with select() in front of key_by"
        )


def is_of_changes(node: job_model.JobNode) -> bool:
    """Whether rows say what became of earlier ones."""
    return CHANGE_KIND in node.schema.names


def without_kind(schema: pa.Schema) -> pa.Schema:
    """The columns of rows, without the kind of change."""
    return pa.schema([field for field in schema if field.name != CHANGE_KIND])


def check_old_rows(call: str, nodes: Sequence[job_model.JobNode], *, forgets: str = "") -> None:
    """Refuse changes that a step cannot take back: those without old rows, and those that go.

    `forgets` is the argument that lets rows go, if it was given.
    """
    if forgets and any(is_of_changes(node) for node in nodes):
        raise UserError(
            f"{call}: {forgets}= over changes\n"
            "  found: a row that is forgotten cannot be taken back\n"
            f"  to fix: leave {forgets}= out; or give rows that are no changes"
        )
    for node in nodes:
        maker = _maker_of_changes(node)
        if maker is not None:
            raise UserError(
                f"{call}: the rows of {node.name!r} do not say which rows they replace\n"
                f"  found: {maker.name!r} has emit='changes'\n"
                f"  to fix: give {maker.name!r} emit='retractions'"
            )


def _maker_of_changes(node: job_model.JobNode) -> job_model.StateStep | None:
    """The step before a node whose changes have no old rows, if there is one."""
    if CHANGE_KIND not in node.schema.names:
        return None
    if isinstance(node, job_model.StateStep):
        operator = node.operator
        emit = operator.totals.emit if isinstance(operator, TimeWindows) else None
        if isinstance(operator, KeyTotals | LatestRow):
            emit = operator.emit
        return node if emit == "changes" else None
    makers = (_maker_of_changes(given) for given in node.inputs)
    return next((maker for maker in makers if maker is not None), None)


def check_upserts(call: str, node: job_model.Anything, emit: str) -> None:
    """Refuse rows that cannot say that a key is gone."""
    if emit == "upserts" and is_of_changes(node):
        raise UserError(
            f"{call}: emit is 'upserts' over changes\n  found: a key may go, and no row says so\n"
            "  to fix: emit='changes'; sinks by key take rows out where a change is a delete"
        )


def refuse_changes(call: str, node: job_model.Anything) -> None:
    """Refuse rows that say what became of earlier ones: those would have to be taken back."""
    if CHANGE_KIND in node.schema.names:
        raise UserError(
            f"{call}: the rows of {node.name!r} are changes, and nothing is taken back here\n"
            f"  found: the column {CHANGE_KIND}\n"
            "  to fix: give rows, not changes; or drop the column with select(), and each change "
            "counts as a row"
        )


def check_not_taken(call: str, columns: Sequence[str], taken: Sequence[str], what: str) -> None:
    """Refuse columns whose names the step gives to columns of its own."""
    own = {name.casefold() for name in taken}
    doubled = [name for name in columns if name.casefold() in own]
    if doubled:
        raise UserError(
            f"{call}: there is a column {doubled[0]!r} already\n  found: {what}\n"
            "  to fix: give it another name with select() in front of key_by"
        )


def check_named_once_in(call: str, names: Sequence[str]) -> None:
    """Refuse columns of both sides with one name."""
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise UserError(
            f"{call}: both sides have a column {doubled[0]!r}\n"
            "  to fix: rename one of them with select()"
        )
