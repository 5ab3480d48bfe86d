"""The pure core of coordinated reads: rows/s of sequencing and ordering, time of a frontier's work.

    .venv/bin/python benchmarks/reads_core.py [--only sequence governor frontier]

Times are CPU seconds of one core, the best of several runs; nothing is read and nothing written.
The peer of sequencing is the table itself, row by row in Python, that of ordering a heap of heads.
"""

from __future__ import annotations

import argparse
import heapq
import json
import time
from collections.abc import Callable

import numpy as np

from millrace.journal.core.clocks import Clock
from millrace.journal.core.journal_names import JournalId, Offset
from millrace.journal.core.row_format import Flag
from millrace.journal.core.sequencing import Sequence, advance, outcome
from millrace.reads.model.checkpoint import CheckpointNumber, merge
from millrace.reads.model.coordinated_read import CohortNumber
from millrace.reads.model.frontier import Frontier
from millrace.reads.model.governor import Governor
from millrace.reads.model.journal_catalog import JournalCatalog
from millrace.reads.model.sequence import Sequences, Stamped
from millrace.reads.model.slice_progress import Hints, Opens, Points, Reads, SliceProgress

RUNS = 5
ROWS = 65_536
CALLS = 20
FAR = 2**62
PRODUCER = 7


def best(prepare: Callable[[], object], work: Callable[[object], object]) -> float:
    """The least time that `work` took on what `prepare` gave."""
    times = []
    for _ in range(RUNS):
        given = prepare()
        begin = time.thread_time()
        work(given)
        times.append(time.thread_time() - begin)
    return min(times)


def report(case: str, count: int, what: str, ours: float, peer: float | None = None) -> None:
    line: dict[str, object] = {"benchmark": "reads_core", "case": case, "millrace_cpu_s": ours}
    if peer is not None:
        line |= {"peer_cpu_s": peer, "ratio": peer / ours}
    print(f"{case:44} {count / ours / 1e6:9.2f} M {what}/s {ours * 1e3:9.2f} ms")
    print(json.dumps({**line, f"{what}_per_s": count / ours}))


def stamped(call: int, tags: int, transaction: int, producers: int) -> Stamped:
    """Rows in turn of each tag, in runs; transactions of 0 rows commit themselves."""
    places = np.arange(ROWS)
    run = ROWS // tags
    tag = np.sort(places % tags)
    within = places % run if tags > 1 else places
    flags = np.zeros(ROWS, np.uint8)
    if transaction:
        ends = within % (transaction + 1) == transaction
        flags = np.where(ends, np.uint8(Flag.ACK), np.uint8(Flag.CONTINUE))
    clocks = (places + call * ROWS + 1).astype(np.uint64)
    writer = PRODUCER + (within // max(transaction + 1, 1)) % producers
    offsets = within + call * run
    return Stamped(tags=tag, offsets=offsets, producers=writer, clocks=clocks, flags=flags)


def sequence_case(case: str, *, tags: int = 1, transaction: int = 0, producers: int = 1) -> None:
    calls = [stamped(call, tags, transaction, producers) for call in range(CALLS)]

    def work(sequences: object) -> None:
        assert isinstance(sequences, Sequences)
        for rows in calls:
            sequences.take(rows)

    ours = best(Sequences, work)
    peer = best(dict, lambda states: row_by_row(calls[0], states)) * CALLS
    report(f"sequence {case}", ROWS * CALLS, "rows", ours, peer)


def row_by_row(rows: Stamped, states: object) -> None:
    assert isinstance(states, dict)
    columns = (rows.tags, rows.offsets, rows.producers, rows.clocks, rows.flags)
    for tag, offset, producer, clock, flag in zip(*(c.tolist() for c in columns), strict=True):
        before = states.get((tag, producer), Sequence())
        done = outcome(Flag(flag), Clock(clock), before)
        states[tag, producer] = advance(before, done, Clock(clock), Offset(offset))


def sequences() -> None:
    sequence_case("1 tag, self-committing")
    sequence_case("1 tag, 8 producers, self-committing", producers=8)
    sequence_case("1,000 tags, self-committing", tags=1_000)
    sequence_case("1,000 tags, 8 producers", tags=1_000, producers=8)
    for length in (1, 10, 1_000):
        sequence_case(f"1 tag, transactions of {length}", transaction=length)
    sequence_case("1,000 tags, transactions of 10", tags=1_000, transaction=10)


def governor_case(case: str, tags: int, falling: float = 0) -> None:
    """All tags are fetched in turns, 64K rows a turn, with clocks that interleave."""
    rng = np.random.default_rng(1)
    each = max(ROWS // tags, 1)
    turns = max(CALLS // 2, 1)
    number = np.repeat(np.arange(tags), each)
    chunks = []
    for turn in range(turns):
        steps = np.sort(rng.integers(0, 1_000_000, (tags, each)), axis=1)
        due = (steps + turn * 1_000_000).reshape(-1).astype(np.uint64)
        back = rng.random(len(due)) < falling
        due[back] -= np.minimum(due[back], np.uint64(200_000))
        chunks.append(due)
    every = np.full(tags, np.inf)

    def start() -> Governor:
        governor = Governor()
        governor.start(np.arange(tags), 0, is_delayed=False)
        return governor

    def work(governor: object) -> None:
        assert isinstance(governor, Governor)
        gone = 0
        for turn, due in enumerate(chunks):
            governor.add(0, turn, number, due)
            left = every if turn + 1 < turns else np.zeros(tags)
            governor.set_left(0, np.arange(tags), left)
            while found := len(governor.next_rows(FAR).in_order()):
                gone += found
            governor.candidates(1_000, FAR)
        assert gone == len(number) * turns, gone

    keys = [
        np.sort(np.concatenate([c.reshape(tags, each)[t] for c in chunks])) for t in range(tags)
    ]
    ours = best(start, work)
    lists = [each_tag.tolist() for each_tag in keys]
    peer = best(lambda: None, lambda _: [None for _ in heapq.merge(*lists)])
    report(f"governor {case}", len(number) * turns, "rows", ours, peer)


def governors() -> None:
    governor_case("10 tags", 10)
    governor_case("10 tags, clocks that fall", 10, falling=0.2)
    governor_case("1,000 tags", 1_000)
    governor_case("10,000 tags", 10_000)
    governor_case("10,000 tags, clocks that fall", 10_000, falling=0.2)

    def one_by_one(_: object) -> None:
        governor = Governor()
        for tag in range(10_000):
            governor.start(tag, 0)

    report("governor 10,000 starts, one by one", 10_000, "tags", best(lambda: None, one_by_one))


def frontier_case(tags: int, touched: int, hinted: int) -> None:
    """One commit in each of `touched` tags a report; `hinted` of them name the next tag, too."""
    catalog = JournalCatalog((CohortNumber(0),), (np.arange(tags),), JournalId(tags))
    rng = np.random.default_rng(1)

    def progress(turn: int) -> SliceProgress:
        some = (
            np.arange(tags)
            if touched == tags
            else np.sort(rng.choice(tags, touched, replace=False))
        )
        producer = np.full(len(some), PRODUCER)
        clock = np.full(len(some), turn + 1, np.uint64)
        begin = np.full(len(some), turn)
        names = slice(0, hinted)
        return SliceProgress(
            points=Points(some, producer, clock, begin),
            hints=Hints(some[names], producer[names], clock[names], np.roll(some, 1)[names]),
            opens=Opens(some, producer, np.full(len(some), -1)),
            reads=Reads(some, begin + 1),
        )

    first, later = progress(0), [progress(turn) for turn in range(1, CALLS + 1)]

    def start() -> Frontier:
        frontier = Frontier((0,), merge())
        whole = np.arange(tags)
        producer, ones = np.full(tags, PRODUCER), np.ones(tags, np.int64)
        points = Points(whole, producer, ones.astype(np.uint64), ones)
        frontier.apply(SliceProgress(points=points, reads=Reads(whole, ones)), catalog, 0)
        frontier.next_delta(CheckpointNumber(1))
        return frontier

    def work(frontier: object) -> None:
        assert isinstance(frontier, Frontier)
        for number, each in enumerate(later, 2):
            frontier.apply(each, catalog, 0)
            frontier.next_delta(CheckpointNumber(number))

    case = f"frontier {tags:,} tags, {touched:,} reported, {hinted:,} hints"
    report(case, touched * CALLS, "points", best(start, work))
    assert len(first.reads) == touched


def frontiers() -> None:
    frontier_case(1_000, 1_000, 0)
    frontier_case(100_000, 100_000, 0)
    frontier_case(100_000, 100_000, 100_000)
    frontier_case(100_000, 1_000, 1_000)
    frontier_case(100_000, 10, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"sequence": sequences, "governor": governors, "frontier": frontiers}
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    for name in parser.parse_args().only:
        parts[name]()


if __name__ == "__main__":
    main()
