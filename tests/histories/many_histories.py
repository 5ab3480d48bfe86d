"""Runs many histories on a ledger, several at a time: in slow tests, and by hand.

    make histories LEDGER=postgres FIRST=2000 SEEDS=100

Each lane is a process with a server of its own, so that a history harms no other one.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from tests.histories.history_driver import run_history
from tests.histories.history_places import (
    LedgerPlace,
    bucket_place,
    bucket_server,
    files_place,
    other_place,
    other_server,
    postgres_place,
    sqlite_place,
)
from tests.postgres.postgres_kit import Postgres

LEDGERS = ("sqlite", "files", "postgres", "bucket", "google", "azure")
LANES = int(os.environ.get("MILLRACE_HISTORY_LANES", "3"))
"""A history waits for half of its time."""
SPAWN = multiprocessing.get_context("spawn")
MakePlace = Callable[[Path], AbstractContextManager[LedgerPlace]]
RunLane = Callable[[str, Sequence[int], Path, float | None], None]


@contextmanager
def lane_of(ledger: str, folder: Path) -> Iterator[MakePlace]:
    """Workspaces on a ledger, with the server that it needs."""
    match ledger:
        case "sqlite":
            yield sqlite_place
        case "files":
            yield files_place
        case "postgres":
            server = Postgres.start()
            try:
                yield partial(postgres_place, server=server)
            finally:
                server.end()
        case "bucket":
            with bucket_server(folder) as bucket:
                yield partial(bucket_place, server=bucket)
        case "google" | "azure":
            with other_server(ledger, folder) as other_bucket:
                yield partial(other_place, server=other_bucket)
        case other:
            raise AssertionError(f"no ledger {other}; there are {LEDGERS}")


def broken_histories(ledger: str, seeds: Sequence[int], folder: Path) -> dict[int, list[str]]:
    """What is wrong with histories, all of which are run; nothing if they keep all laws."""
    judged = judged_histories(ledger, seeds, folder)
    assert set(judged) == set(seeds)
    return {seed: problems for seed, problems in judged.items() if problems}


def judged_histories(
    ledger: str,
    seeds: Sequence[int],
    folder: Path,
    *,
    until: float | None = None,
    run_lane: RunLane | None = None,
) -> dict[int, list[str]]:
    """What is wrong with each history that was run; `until` begins no more of them.

    A history whose lane died before its verdict is broken, too.
    """
    shares = [list(seeds[number::LANES]) for number in range(min(LANES, len(seeds)))]
    lanes = []
    for number, share in enumerate(shares):
        place = folder / f"lane-{number}"
        place.mkdir()
        given = (ledger, share, place, until)
        lanes.append(SPAWN.Process(target=run_lane or _run_lane, args=given))
        lanes[-1].start()
    judged: dict[int, list[str]] = {}
    for number, lane in enumerate(lanes):
        lane.join()
        place = folder / f"lane-{number}"
        with contextlib.suppress(FileNotFoundError):
            judged.update(json.loads(line) for line in (place / "judged").read_text().splitlines())
        if lane.exitcode:
            no_verdict = [f"no verdict: its lane ended with status {lane.exitcode}, see {place}"]
            judged.update({seed: no_verdict for seed in shares[number] if seed not in judged})
    return judged


def _run_lane(ledger: str, seeds: Sequence[int], folder: Path, until: float | None) -> None:
    with (folder / "stderr").open("ab") as said:
        os.dup2(said.fileno(), 2)
    faulthandler.enable()
    with lane_of(ledger, folder) as make, (folder / "judged").open("a") as judged:
        for seed in seeds:
            if until is not None and time.time() > until:
                return
            place = folder / str(seed)
            place.mkdir()
            problems = _judge(make, place, seed)
            if problems:
                problems.append(f"files, and what each process said: {place / 'run'}")
            judged.write(json.dumps([seed, problems]) + "\n")
            judged.flush()
            if not problems:
                shutil.rmtree(place)


def _judge(make: MakePlace, folder: Path, seed: int) -> list[str]:
    try:
        with make(folder) as place:
            return run_history(place, folder / "run", seed)
    except Exception:  # noqa: BLE001 - told with its seed
        return [traceback.format_exc()]


def main() -> None:
    """Run them, and say what is wrong."""
    asked = argparse.ArgumentParser(description=main.__doc__)
    asked.add_argument("ledger", choices=LEDGERS)
    asked.add_argument("--first", type=int, default=1000)
    asked.add_argument("--seeds", type=int, default=30)
    asked.add_argument("--seconds", type=float, help="begin no more after so long")
    given = asked.parse_args()
    until = None if given.seconds is None else time.time() + given.seconds
    folder = Path(tempfile.mkdtemp(prefix="mr-histories-", dir=os.environ.get("TMPDIR")))
    seeds = range(given.first, given.first + given.seeds)
    judged = judged_histories(given.ledger, seeds, folder, until=until)
    broken = {seed: problems for seed, problems in sorted(judged.items()) if problems}
    for seed, problems in broken.items():
        print(f"seed {seed}: ", *problems, sep="\n  ")  # noqa: T201 - what it is for
    print(f"{given.ledger}: {len(judged)} histories from seed {given.first}, {len(broken)} broken")  # noqa: T201
    if broken:
        sys.exit(f"files: {folder}")
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
