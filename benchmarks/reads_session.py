"""The session of a coordinated read with very many members and journals: seconds, memory, messages.

    .venv/bin/python benchmarks/reads_session.py [--sizes MEMBERS:JOURNALS ...]

The session's own state machine, without members: this script answers for them. Messages are counted
with their bytes as members on other hosts get them; one that all members get is encoded once. Each
producer writes transactions over two journals, so half of all commits wait for the other half.

- `open`: journals are listed, shared out and started.
- `first`: every slice reports rows of all of its journals; one checkpoint shows them.
- `later`: rows of 200 journals are reported; a checkpoint shows them, and is committed.
- `new journal`: one more journal is named, as the broker remembers that it was made.
- `resume`: another session begins with the committed checkpoint.

Seconds are of CPU. Tables go to stderr, one JSON line for each size to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from millrace.config import Config
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.values import JournalInfo
from millrace.limits import MIB
from millrace.reads.model.checkpoint import Checkpoint, CheckpointNumber, merge
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.reads.model.number_tables import NONE
from millrace.reads.model.session_messages import Reported, StartReads
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads, SliceProgress
from millrace.reads.model.tags import Ints
from millrace.reads.session.journal_reads import Send
from millrace.reads.session.session_state import FreeRows, HandOut, Resumed, SessionState
from millrace.transport.members.member_messages import FROM_SESSION, encode, encode_release

SCHEMA: Final = pa.schema([("key", pa.int64()), ("value", pa.string())])
READ: Final = CoordinatedRead("simulated", [Binding(name="all", prefix="j", key="key")])
SOME: Final = 100
CLOCK: Final = np.uint64(10**9)
Measured = dict[str, Any]


def journals_of(count: int) -> list[JournalInfo]:
    return [
        JournalInfo(
            id=JournalId(number), name=f"j/{number}", schema=SCHEMA, labels={}, created_at_ms=0
        )
        for number in range(1, count + 1)
    ]


class SimulatedMembers:
    """Counts the messages to members, and reports in their place."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.tags: dict[int, Ints] = {}

    def take(self, actions: Iterable[object]) -> Checkpoint | None:
        """Do what the session decides; the checkpoint that it hands out."""
        sizes: dict[int, int] = {}
        handed_out = None
        for action in actions:
            match action:
                case Send(slice_, message):
                    kind = type(message).__name__
                    if id(message) not in sizes:
                        sizes[id(message)] = len(
                            encode(
                                FROM_SESSION, message, Config().reads_envelope_bytes_max
                            ).envelope
                        )
                    self.messages[kind] += 1
                    self.bytes[kind] += sizes[id(message)]
                    if isinstance(message, StartReads):
                        self.tags[slice_] = message.starts.tag
                case FreeRows(shown, rolled_back):
                    members = self.state.journals.members
                    self.messages["FreeRows"] += members
                    self.bytes["FreeRows"] += members * len(encode_release(shown, rolled_back))
                case HandOut(delta):
                    handed_out = delta
                case _:
                    pass
        return handed_out

    def report(self, slice_: int, tags: Ints, clock: np.uint64) -> None:
        """A slice has read a transaction in these journals."""
        if not len(tags):
            return
        producers = (tags + 1) // 2
        partners = np.where(tags % 2 == 1, tags + 1, tags - 1)
        clocks = np.full(len(tags), clock)
        begins = np.zeros(len(tags), np.int64)
        progress = SliceProgress(
            points=Points(tags, producers, clocks, begins),
            hints=Hints(tags, producers, clocks, partners),
            opens=Opens(tags, producers, np.full(len(tags), NONE)),
            reads=Reads(tags, begins + int(clock - CLOCK) + 2),
        )
        self.messages["Reported"] += 1
        self.bytes["Reported"] += len(progress.to_bytes())
        self.state.on_message(slice_, Reported(progress), 0)


class Stage:
    """One stage of a session's life: its seconds and messages."""

    def __init__(self, into: Measured) -> None:
        self._into = into

    @contextmanager
    def named(self, name: str, members: SimulatedMembers | None = None) -> Iterator[None]:
        """Measure a stage."""
        before = (Counter(members.messages), Counter(members.bytes)) if members else None
        begun = time.process_time()
        yield
        self._into[f"{name}_s"] = round(time.process_time() - begun, 3)
        if members is not None and before is not None:
            self._into[f"{name}_messages"] = (members.messages - before[0]).total()
            self._into[f"{name}_bytes"] = (members.bytes - before[1]).total()


def resident_mib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // MIB


def measure(members: int, count: int) -> Measured:
    measured: Measured = {"benchmark": "reads_session", "members": members, "journals": count}
    journals = journals_of(count)
    offsets = {info.name: Offset(0) for info in journals}
    base, stage = resident_mib(), Stage(measured)
    state = SessionState(READ, members, Resumed(Checkpoint()))
    simulated = SimulatedMembers(state)
    with stage.named("open", simulated):
        simulated.take(state.on_journals(journals, offsets, 0))
        simulated.take(state.begin())
    with stage.named("first", simulated):
        for number, tags in sorted(simulated.tags.items()):
            simulated.report(number, tags, CLOCK)
        first = simulated.take(state.next_checkpoint())
    assert first is not None
    assert len(first.shown) == count, (len(first.shown), count)
    measured["checkpoint_bytes"] = len(first.to_bytes())
    committed = commit(simulated, first, Checkpoint())
    with stage.named("later", simulated):
        later = simulated.take(some_more(simulated))
        assert later is not None
        committed = commit(simulated, later, committed)
    measured["later_checkpoint_bytes"] = len(later.to_bytes())
    measured["grew_mib"] = resident_mib() - base
    more = journals_of(count + 1)[-1:]
    with stage.named("new_journal", simulated):
        simulated.take(state.on_journals(more, {more[0].name: Offset(0)}, 0, gone=()))
    with stage.named("resume"):
        again = SessionState(READ, members, Resumed(committed, (), committed.number))
        SimulatedMembers(again).take(again.on_journals(journals, {}, 0))
    return measured


def some_more(simulated: SimulatedMembers) -> list[Any]:
    """A later transaction in both journals of some producers, wherever these are read."""
    firsts = [int(tags[0]) for tags in simulated.tags.values()][:SOME]
    some = np.array([tag + side for tag in firsts for side in (0, 1 if tag % 2 else -1)])
    for number, tags in sorted(simulated.tags.items()):
        simulated.report(number, tags[np.isin(tags, some)], CLOCK + np.uint64(1))
    return [*simulated.state.next_checkpoint()]


def commit(simulated: SimulatedMembers, delta: Checkpoint, before: Checkpoint) -> Checkpoint:
    """Commit a checkpoint, as the session's store does."""
    simulated.take(simulated.state.on_commit(CheckpointNumber(delta.number)))
    whole = merge(before, delta)
    simulated.take(simulated.state.on_committed(delta.number, whole))
    return whole


def show(found: Sequence[Measured]) -> None:
    table = Table("", *(f"{each['members']:,} x {each['journals']:,}" for each in found))
    for key in found[0]:
        if key not in ("benchmark", "members", "journals"):
            table.add_row(key, *(f"{each[key]:,}" for each in found))
    Console(stderr=True).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = ["10:10000", "100:100000", "1000:100000", "1000:1000000"]
    parser.add_argument("--sizes", nargs="+", default=sizes, help="MEMBERS:JOURNALS")
    found = []
    for size in parser.parse_args().sizes:
        members, journals = map(int, size.split(":"))
        found.append(measure(members, journals))
        print(json.dumps(found[-1]), flush=True)
    show(found)


if __name__ == "__main__":
    main()
