"""Run seeds, and make what fails small: `python -m tests.sim.simulate --seed 7`."""

# ruff: noqa: T201 - it tells people at a terminal

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from tests.sim.plan import Op, Plan, plan_of
from tests.sim.world import run

SHRINK_RUNS_MAX: Final = 400
ALIKE: Final = 40


@dataclass(frozen=True, slots=True)
class Failure:
    seed: int
    why: str
    plan: Plan

    def __str__(self) -> str:
        ops = "\n".join(f"  {op}" for op in self.plan.ops)
        return (
            f"seed {self.seed} fails: {self.why}\n{self.plan.world}\n"
            f"what is left of its plan, {len(self.plan.ops)} operations:\n{ops}\n"
            f"  to see it again: make sim SEED={self.seed}"
        )


def failure_of(plan: Plan) -> str | None:
    """Why a plan fails; None if it does not."""
    try:
        run(plan)
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed has found something
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"{type(error).__name__}: {error} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        )
    return None


def check(seed: int, *, shrink: bool = True) -> Failure | None:
    """Run a seed; what is wrong with it, as small as it could be made."""
    plan = plan_of(seed)
    why = failure_of(plan)
    if why is None:
        return None
    if shrink:
        plan = shrunk(plan, why)
        why = failure_of(plan) or why
    return Failure(seed, why, plan)


def shrunk(plan: Plan, why: str) -> Plan:
    """Leave out what is not needed to fail alike: whole producers, whole kinds, then any runs."""
    runs, alike = 0, _kind(why)

    def fails(fewer: Plan) -> bool:
        return _kind(failure_of(fewer) or "") == alike

    for name in ("producer", "kind"):
        for key in sorted({_key(op, name) for op in plan.ops}):
            fewer = replace(plan, ops=tuple(op for op in plan.ops if _key(op, name) != key))
            runs += 1
            if fails(fewer):
                plan = fewer
    size = max(1, len(plan.ops) // 2)
    while size and runs < SHRINK_RUNS_MAX:
        place = 0
        while place < len(plan.ops) and runs < SHRINK_RUNS_MAX:
            fewer = replace(plan, ops=plan.ops[:place] + plan.ops[place + size :])
            runs += 1
            if fails(fewer):
                plan = fewer
            else:
                place += size
        size //= 2
    return plan


def _kind(why: str) -> str:
    """What is alike in failures that are the same: their first words, whatever the numbers."""
    return re.sub(r"[\d(\[].*", "", why)[:ALIKE]


def _key(op: Op, name: str) -> str:
    if name == "kind":
        return op.kind
    is_write = op.kind in ("now", "add", "touch", "fresh", "end", "ack", "rollback", "resend")
    return str(op.args[0]) if is_write else ""


def first_failure(seeds: Iterable[int], *, shrink: bool = True) -> Failure | None:
    for seed in seeds:
        found = check(seed, shrink=shrink)
        if found is not None:
            return found
    return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    counts: Counter[str] = Counter()
    began, failures = time.monotonic(), 0
    for seed in seeds:
        plan = plan_of(seed)
        try:
            counts += run(plan)
        except Exception as error:  # noqa: BLE001 - told below
            failures += 1
            if given.go_on:
                print(f"seed {seed}: {type(error).__name__} {str(error)[:150]!r}")
                continue
            if given.seed is not None:
                traceback.print_exc()
            print(check(seed))
            sys.exit(1)
    took = time.monotonic() - began
    print(f"{len(seeds)} seeds in {took:.1f} s, {failures} failed; {dict(counts)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
