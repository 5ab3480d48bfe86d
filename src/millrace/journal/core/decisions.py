"""What each request does, decided on a draft of the book. Pure: time and new ids are arguments.

Every function here either changes the draft and returns the answer, or raises and the draft is
thrown away. The caller stores the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from millrace.errors import (
    Conflict,
    JournalUnknown,
    LeaseHeld,
    LeaseLost,
    OffsetOutOfRange,
    StillNeeded,
    UserError,
)
from millrace.journal.core.book import (
    NEXT_JOURNAL,
    VERSION,
    Book,
    Journal,
    LeaseState,
    ProducerState,
)
from millrace.journal.core.journal_names import (
    JournalId,
    Offset,
    check_group,
    check_labels,
    check_name,
    under,
)
from millrace.journal.core.row_format import ProducerId, first_difference, journal_schema
from millrace.journal.core.values import Anything, Commit, JournalInfo, Lease, Truncated
from millrace.names import check_text


def create(
    book: Book, name: str, schema: pa.Schema, labels: Mapping[str, str], *, now_ms: int
) -> JournalInfo:
    """Create a journal, or find the same one."""
    check_name(name)
    schema, labels = journal_schema(schema), check_labels(labels)
    there = book.journals.get(name)
    if there is not None:
        _check_same(there, schema, labels)
        return there.info()
    journal = Journal(
        id=JournalId(book.raise_count(NEXT_JOURNAL)),
        name=name,
        schema=schema,
        labels=labels,
        created_at_ms=now_ms,
        start=Offset(0),
        end=Offset(0),
        rows=0,
    )
    book.journals.put(name, journal)
    book.raise_count(VERSION)
    return journal.info()


def delete(book: Book, name: str) -> None:
    """Delete a journal and all that the book has of it."""
    journal = book.journal(name)
    book.journals.put(name, None)
    book.sequences.put(journal.id, None)
    book.rolled_back.put(journal.id, None)
    book.groups.put(journal.id, None)
    book.deleted.append(journal)
    book.raise_count(VERSION)


def name_producer(book: Book, name: str, new_id: Callable[[], ProducerId]) -> ProducerId:
    """The producer of this name, made if it is missing."""
    check_name(name)
    there = book.producer_names.get(name)
    if there is not None:
        return there
    fresh = new_id()
    while book.producers.get(fresh) is not None:
        fresh = new_id()
    book.producer_names.put(name, fresh)
    book.producers.put(fresh, ProducerState(name=name))
    return fresh


def commit(book: Book, request: Commit, *, again_is_fine: bool) -> None:
    """Set the offset of a group if it has the expected one."""
    check_group(request.group)
    # It may grow meanwhile. What truncates or deletes it reads or changes the groups.
    journal = book.journal(request.journal, is_read=False)
    if request.id is not None and request.id != journal.id:
        raise JournalUnknown(
            f"journal {request.journal!r} is not the one that was read: it was deleted and made "
            "again\n  to fix: look at the journals there are"
        )
    groups = book.groups.get(journal.id) or {}
    current = groups.get(request.group)
    offset = Offset(request.offset)
    if again_is_fine and current == offset:
        return
    if not isinstance(request.expected, Anything) and current != request.expected:
        raise Conflict(
            f"group {request.group!r} in journal {journal.name!r} does not stand where expected\n"
            f"  expected: {request.expected}, found: {current}\n"
            "  to fix: read its committed offset and go on from there"
        )
    if not journal.start <= offset <= journal.end:
        raise OffsetOutOfRange(
            f"group {request.group!r} cannot commit offset {offset} in journal {journal.name!r}\n"
            f"  found: offsets {journal.start} to {journal.end}\n"
            "  to fix: give one of these"
        )
    book.groups.put(journal.id, {**groups, request.group: offset})


def truncate(
    book: Book,
    name: str,
    offset: int,
    *,
    force: bool,
    rows_between: Callable[[Journal, Offset, Offset], int],
) -> Truncated:
    """Move the start of a journal up, unless a group or an open transaction needs the rows."""
    journal = book.journal(name)
    if offset > journal.end or offset < 0:
        raise OffsetOutOfRange(
            f"journal {name!r} cannot be truncated before {offset}\n"
            f"  found: offsets {journal.start} to {journal.end}\n"
            "  to fix: give one of these"
        )
    floor, who = _floor(book, journal)
    if offset > floor and not force:
        raise StillNeeded(
            f"truncating journal {name!r} before {offset} would take rows that {who} needs\n"
            f"  needed from: {floor}\n  to fix: truncate before {floor}, or force it"
        )
    start = Offset(max(offset, journal.start))
    if start == journal.start:
        return Truncated(removed=0, start_offset=start)
    decided = min(start, book.stable_end(journal))
    removed = rows_between(journal, journal.start, max(journal.start, decided))
    after = replace(journal, start=start)
    book.journals.put(name, after)
    gone = book.rolled_back.get(journal.id) or ()
    book.rolled_back.put(
        journal.id, tuple(transaction for transaction in gone if transaction.end > start)
    )
    book.truncated.append(after)
    return Truncated(removed=removed, start_offset=start)


def acquire(
    book: Book, name: str, holder: str, *, lease_ms: int, now_ms: int, after: int | None = None
) -> Lease:
    """Acquire a lease that is free, expired, or held by the same holder, under the next epoch.

    With `after` only if that is the epoch now.
    """
    check_text(name, "a lease")
    check_text(holder, "the holder of a lease")
    there = book.leases.get(name)
    if there and there.holder not in (None, holder) and there.expires_at_ms > now_ms:
        raise LeaseHeld(
            f"lease {name!r} is held by {there.holder!r} under epoch {there.epoch}\n"
            f"  for another {there.expires_at_ms - now_ms} ms\n"
            "  to fix: ask again then, or let its holder release it"
        )
    epoch = _next_epoch(book, name, after)
    state = LeaseState(
        epoch=epoch, holder=holder, expires_at_ms=now_ms + lease_ms, lease_ms=lease_ms
    )
    book.leases.put(name, state)
    return Lease(name=name, epoch=epoch, holder=holder, expires_at_ms=state.expires_at_ms)


def renew(book: Book, lease: Lease, *, lease_ms: int, now_ms: int) -> Lease:
    """Extend a lease from now on, also an expired one that no other holder took."""
    state = check_lease(book, lease)
    expires = now_ms + lease_ms
    book.leases.put(lease.name, replace(state, expires_at_ms=expires, lease_ms=lease_ms))
    return replace(lease, expires_at_ms=expires)


def release(book: Book, lease: Lease) -> None:
    """Release a lease, if its epoch is current."""
    state = book.leases.get(lease.name)
    if state is not None and (state.epoch, state.holder) == (lease.epoch, lease.holder):
        book.leases.put(lease.name, replace(state, holder=None))


def fence(book: Book, name: str, *, after: int | None = None) -> int:
    """End the epoch of a lease: its holder can do nothing under it any more."""
    epoch = _next_epoch(book, name, after)
    ended = LeaseState(epoch=epoch, holder=None, expires_at_ms=0, lease_ms=0)
    book.leases.put(name, ended)
    return epoch


def held_leases(book: Book, prefix: str, *, now_ms: int) -> tuple[Lease, ...]:
    """The leases under a prefix that somebody holds, by name."""
    return tuple(
        Lease(name=name, epoch=state.epoch, holder=state.holder, expires_at_ms=state.expires_at_ms)
        for name, state in sorted(book.leases.all(), key=lambda entry: entry[0])
        if under(prefix, name) and state.holder is not None and state.expires_at_ms > now_ms
    )


def _next_epoch(book: Book, name: str, after: int | None) -> int:
    """The epoch after the one that a lease has; a `Conflict` if that is not the expected one."""
    state = book.leases.get(name)
    epoch = state.epoch if state else 0
    if after is not None and after != epoch:
        raise Conflict(
            f"lease {name!r} is not what it was\n  expected: epoch {after}, found: {epoch}\n"
            "  to fix: look at its epoch, and ask again"
        )
    return epoch + 1


def check_lease(book: Book, lease: Lease) -> LeaseState:
    """Refuse a lease whose epoch is over."""
    state = book.leases.get(lease.name)
    if state is None or (state.epoch, state.holder) != (lease.epoch, lease.holder):
        holder = "none" if state is None else f"epoch {state.epoch} of {state.holder or 'nobody'}"
        raise LeaseLost(
            f"lease {lease.name!r} under epoch {lease.epoch} of {lease.holder} is over\n"
            f"  found: {holder}\n  to fix: stop this work; ask for a new lease to go on"
        )
    return state


def _check_same(there: Journal, schema: pa.Schema, labels: Mapping[str, str]) -> None:
    different = first_difference(schema, there.schema)
    if different is None:
        loose = [f.name for f in schema if f.nullable != there.schema.field(f.name).nullable]
        different = f"field {loose[0]!r} differs in whether it may be null" if loose else None
    if different is None and labels != there.labels:
        different = f"labels {labels}, there: {dict(there.labels)}"
    if different is not None:
        raise UserError(
            f"journal {there.name!r} is there already and is not the same\n  {different}\n"
            "  to fix: use another name, or what is there"
        )


def _floor(book: Book, journal: Journal) -> tuple[Offset, str]:
    """The lowest offset that is needed, and by what."""
    groups = book.groups.get(journal.id) or {}
    needs = [(offset, f"group {group!r}") for group, offset in groups.items()]
    needs += [
        (state.open.begin, f"the open transaction of producer {producer}")
        for producer, state in (book.sequences.get(journal.id) or {}).items()
        if state.open is not None
    ]
    return min(needs, default=(journal.end, "nobody"))
