"""Compares short forms of the benchmarks with the ratios that were recorded last.

    .venv/bin/python benchmarks/check.py [--record] [--only key_hash job ...] [--file PATH]

A ratio is how many times as fast as its peer Millrace is, in the same run on the same data; more is
better. Of each case, several ratios are recorded, each with the commit and date of its measurement.
A case fell if it is a fifth below the lowest of them: it is then measured up to three times, and
the median counts.

Other work on the cores disturbs ratios too, so the cores are looked at while a benchmark runs. A
case that is low is an error only if two runs or more were undisturbed, on the kind of machine that
it was recorded on; otherwise this says so and goes on. It ends in less than five minutes: every
benchmark runs once before a low one runs again, and each day another one comes first. A case that
it had no time for is an error on that kind of machine, if no run was disturbed and the cores are
idle, and so is one that is no longer measured.

`--record` measures five times, on cores that nothing else uses, and writes recorded.json. The
message for a case that fell lists the commits since it was measured last, and how to find the one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.other_work import OtherWork, busy_share

HERE: Final = Path(__file__).parent
RECORDED: Final = HERE / "recorded.json"
FALL_MAX: Final = 0.2
"""How far below the lowest recorded ratio a case may be."""
TRIES: Final = 3
RECORD_RUNS: Final = 5
RUN_S_MAX: Final = 600
CHECK_S_MAX: Final = 280
"""No run begins or goes on after this time."""
BUSY_SHARE_MAX: Final = 0.25
"""A run is disturbed if other work uses more of the cores than this while it runs."""
UNDISTURBED_MIN: Final = 2
COMMITS_SHOWN_MAX: Final = 15

Lines = Sequence[Mapping[str, Any]]
Ratios = dict[str, float]


class Unusable(Exception):
    """What stands in the way of comparing, for a user."""


class OutOfTime(Exception):
    """A run was not begun or not ended because the check has to end."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A ratio as it was, when, and at which commit."""

    ratio: float
    date: str
    commit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Measurements of a case, the last one last, and on what they were made."""

    measurements: tuple[Measurement, ...]
    machine: str

    @property
    def ratios(self) -> tuple[float, ...]:
        """Of all measurements."""
        return tuple(one.ratio for one in self.measurements)

    @property
    def commit(self) -> str:
        """The last one that is known to have been as fast."""
        return self.measurements[-1].commit

    @property
    def floor(self) -> float:
        """Below this, a case fell."""
        return min(self.ratios) * (1 - FALL_MAX)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a benchmark: the ratio of each case, and whether other work disturbed it."""

    ratios: Mapping[str, float]
    is_disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Short:
    """A short form of a benchmark: how it is run, and the ratios that its lines give."""

    arguments: tuple[str, ...]
    ratios: Callable[[Lines], Ratios]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One case: what was recorded, what was measured, and what that means."""

    case: str
    recorded: Recorded | None
    ratios: tuple[float, ...] = ()
    """Of all runs."""
    undisturbed: tuple[float, ...] = ()
    here: str = field(default="", repr=False)
    """The kind of machine of the runs."""
    not_compared: str | None = None
    """Why there were not enough runs, if so."""

    @property
    def measured(self) -> float | None:
        """The median of undisturbed runs if there are enough, otherwise of all."""
        ratios = self.undisturbed if len(self.undisturbed) >= UNDISTURBED_MIN else self.ratios
        return median(ratios) if ratios else None

    @property
    def is_low(self) -> bool:
        """Whether it is below what was recorded, or missing."""
        if self.recorded is None:
            return False
        return self.measured is None or self.measured < self.recorded.floor

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.recorded is None:
            return "not recorded"
        if not self.is_low:
            return "ok"
        if self.not_compared is not None:
            return "not compared"
        if self.measured is None:
            return "not measured"
        if self.recorded.machine != self.here:
            return "other machine"
        return "fell" if len(self.undisturbed) >= UNDISTURBED_MIN else "machine busy"

    @property
    def is_bad(self) -> bool:
        """Whether this is what the check is for."""
        return self.verdict in ("fell", "not measured")

    @property
    def text(self) -> str:
        """The numbers, in a line."""
        assert self.recorded is not None
        lowest, middle = min(self.recorded.ratios), median(self.recorded.ratios)
        found = "not measured" if self.measured is None else f"found {self.measured:.2f}"
        return f"{self.case}: recorded {middle:.2f}, at least {lowest:.2f}; {found}"


# What the benchmarks say.
def times_as_fast(lines: Lines) -> Ratios:
    """Where `ratio` is how many times as fast as the peer Millrace is."""
    return {line["case"]: float(line["ratio"]) for line in lines if "ratio" in line}


def compiled_only(lines: Lines) -> Ratios:
    """Of key hashes: what users run."""
    return {k: v for k, v in times_as_fast(lines).items() if k.endswith("native")}


def total_alone(lines: Lines) -> Ratios:
    """Of many short queries: all together, since each alone is noise."""
    return {case: ratio for case, ratio in times_as_fast(lines).items() if " total " in case}


def times_as_long(lines: Lines) -> Ratios:
    """Where `ratio` is how many times as long as the peer Millrace takes."""
    return {line["case"]: 1 / float(line["ratio"]) for line in lines if "ratio" in line}


def beside_a_plain_file(lines: Lines) -> Ratios:
    """Of journals: rows per second beside those of a file that is synced after each batch."""
    last = lines[-1] if lines else {"results": ()}
    return {
        f"append to {one['case']}, {one['writers']} writers": one["rows_per_s"] / last["plain_file"]
        for one in last["results"]
    }


SHORT: Final[Mapping[str, Short]] = {
    "key_hash": Short(("--rows", "4000000"), compiled_only),
    "shuffle_write": Short(("--rows", "4000000"), times_as_fast),
    "datasets": Short(("--rows", "2000000", "--parts", "peers"), times_as_fast),
    "journal": Short(
        (
            *("--rows", "40000", "--brokers", "embedded", "--writers", "1", "8"),
            *("--workers", "--open-rows", "4000", "--open-journals", "100"),
        ),
        beside_a_plain_file,
    ),
    "reads": Short(("--rows", "500000", "--parts", "spark"), times_as_fast),
    "job": Short(("--rows", "100000", "--parts", "peers", "--kinds", "row"), times_as_long),
    "asof": Short(("--rows", "500000", "--case", "as-of"), times_as_fast),
    "tpch": Short(
        ("--scale", "0.1", "--form", "sql", "--rounds", "3", "--queries", "1", "3", "6", "18"),
        total_alone,
    ),
}


# Comparing. Pure.
def judge(
    recorded: Mapping[str, Recorded],
    runs: Sequence[Run],
    here: str,
    *,
    not_compared: str | None = None,
) -> list[Judged]:
    """Every case that was recorded or measured."""
    measured = {case for run in runs for case in run.ratios}
    return [
        Judged(
            case=case,
            recorded=recorded.get(case),
            ratios=tuple(run.ratios[case] for run in runs if case in run.ratios),
            undisturbed=tuple(
                run.ratios[case] for run in runs if case in run.ratios and not run.is_disturbed
            ),
            here=here,
            not_compared=not_compared,
        )
        for case in sorted({*recorded, *measured})
    ]


def of(benchmarks: Iterable[str], recorded: Mapping[str, Recorded]) -> dict[str, Recorded]:
    """What is recorded of these benchmarks."""
    return {
        case: one for case, one in recorded.items() if case.partition(":")[0] in set(benchmarks)
    }


def complaint(judged: Sequence[Judged], commits: Callable[[str], str]) -> str | None:
    """What to say if something fell; None if nothing did. `commits` tells those since one."""
    bad = [one for one in judged if one.is_bad]
    if not bad:
        return None
    since: dict[str, list[Judged]] = {}
    for one in bad:
        if one.recorded is not None:
            since.setdefault(one.recorded.commit, []).append(one)
    told = [f"slower than recorded, by more than {FALL_MAX:.0%} against the peer"]
    for commit, cases in since.items():
        names = sorted({one.case.partition(":")[0] for one in cases})
        told += [f"  {one.text}" for one in cases]
        told += [
            commits(commit),
            (
                f"  to fix: find the commit: git bisect start HEAD {commit}; git bisect run "
                f".venv/bin/python benchmarks/check.py --only {' '.join(names)}"
            ),
        ]
    return "\n".join([*told, "  or, if it is meant to be slower: benchmarks/check.py --record"])


def remarks(judged: Sequence[Judged]) -> list[str]:
    """What was low and is no error, and why."""
    why = {
        "machine busy": f"other work used over {BUSY_SHARE_MAX:.0%} of the cores",
        "other machine": "recorded on another kind of machine",
    }
    return [
        f"{one.text}; not compared: {one.not_compared or why[one.verdict]}"
        for one in judged
        if one.verdict in ("not compared", *why)
    ]


# The file.
def load(path: Path) -> dict[str, Recorded]:
    """What was recorded."""
    fix = "  to fix: run benchmarks/check.py --record on a machine with nothing else to do"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Unusable(f"no recorded ratios at {path}\n  found: {error}\n{fix}") from error
    try:
        found = {
            str(case): Recorded(
                measurements=tuple(
                    Measurement(float(made["ratio"]), str(made["date"]), str(made["commit"]))
                    for made in one["measurements"]
                ),
                machine=str(one["machine"]),
            )
            for case, one in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"cannot understand {path}\n  found: {error!r}\n{fix}") from error
    if not found:
        raise Unusable(f"no recorded ratios in {path}\n  found: no case\n{fix}")
    for case, one in found.items():
        if not one.ratios or not all(0 < ratio < float("inf") for ratio in one.ratios):
            raise Unusable(f"cannot understand {path}\n  found: {case}: ratios {one.ratios}\n{fix}")
    return found


def save(path: Path, recorded: Mapping[str, Recorded]) -> None:
    """Write all that is recorded, in place of what was."""
    document = {case: asdict(recorded[case]) for case in sorted(recorded)}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)


def machine() -> str:
    """The kind of machine this is."""
    cores = len(os.sched_getaffinity(0))
    return f"{processor()}, {cores} cores, {platform.system()} {platform.machine()}"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# The commits.
def git(*arguments: str) -> str | None:
    """What git says of this checkout; None if there is none."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def commits_since(commit: str) -> str:
    """The commits after one that changed the code, newest first."""
    told = git("log", "--oneline", f"{commit}..HEAD", "--", "../src")
    if told is None:
        return f"  since: {commit} (git does not know it here)"
    lines = told.splitlines()
    more = len(lines) - COMMITS_SHOWN_MAX
    shown = [f"    {line}" for line in lines[:COMMITS_SHOWN_MAX]]
    rest = [f"    and {more} before"] if more > 0 else []
    return "\n".join([f"  since {commit}, {len(lines)} commits of src:", *shown, *rest])


# Running.
def run(name: str, limit_s: float = RUN_S_MAX) -> Run:
    """Run the short form of a benchmark; its ratios by case, under its name."""
    if limit_s <= 0:
        raise OutOfTime(name)
    short = SHORT[name]
    begun = time.monotonic()
    command = [sys.executable, str(HERE / f"{name}.py"), *short.arguments]
    print(f"running {' '.join(command[1:])}", file=sys.stderr, flush=True)
    others = OtherWork()
    try:
        with others:
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=limit_s
            )
    except subprocess.CalledProcessError as error:
        last = "\n    ".join(error.stderr.strip().splitlines()[-12:])
        raise Unusable(f"benchmark {name} failed\n    {last}") from error
    except subprocess.TimeoutExpired as error:
        raise OutOfTime(name) from error
    print(
        f"  took {time.monotonic() - begun:.0f} s, other work {others.share:.0%}",
        file=sys.stderr,
        flush=True,
    )
    ratios = short.ratios(json_lines(done.stdout))
    if not ratios:
        raise Unusable(f"benchmark {name} gave no ratio\n  found: {done.stdout[-500:]!r}")
    return Run(
        {f"{name}: {case}": round(ratio, 3) for case, ratio in ratios.items()},
        is_disturbed=others.share > BUSY_SHARE_MAX,
    )


def json_lines(text: str) -> list[dict[str, Any]]:
    """The lines that are for programs; tables for people stand between them."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@dataclass(slots=True)
class Trial:
    """A benchmark that is run until none of its cases is low, or it was tried enough."""

    name: str
    recorded: Mapping[str, Recorded]
    here: str
    runs: list[Run] = field(default_factory=list)
    not_compared: str | None = None
    _failed: bool = False

    @property
    def judged(self) -> list[Judged]:
        """Its cases, as they are now."""
        return judge(self.recorded, self.runs, self.here, not_compared=self.not_compared)

    @property
    def goes_on(self) -> bool:
        """Whether another run would say more."""
        low = any(one.is_low for one in self.judged) or not self.runs
        return low and len(self.runs) < TRIES and self.not_compared is None

    @property
    def is_elsewhere(self) -> bool:
        """Whether it was recorded on another kind of machine."""
        return any(one.machine != self.here for one in self.recorded.values())

    def run_once(self, limit_s: float, *, was_disturbed: bool) -> None:
        """Run it, if there is time. Runs before it may have been disturbed, and so taken longer."""
        try:
            self.runs.append(run(self.name, limit_s))
        except OutOfTime:
            # On idle cores, a case that never ran is an error.
            has_reason = bool(self.runs) or was_disturbed or self.is_elsewhere
            if has_reason or busy_share() > BUSY_SHARE_MAX:
                self.not_compared = f"the check ends after {CHECK_S_MAX} s"
        except Unusable as error:
            # A busy machine can end a benchmark: an idle one does so twice if it is wrong.
            print(error, file=sys.stderr, flush=True)
            if self._failed and busy_share() <= BUSY_SHARE_MAX:
                raise
            self.not_compared = "its benchmark failed twice on busy cores" if self._failed else None
            self._failed = True


def measure_and_judge(
    names: Sequence[str],
    recorded: Mapping[str, Recorded],
    here: str,
    now: Callable[[], float] = time.monotonic,
) -> list[Judged]:
    """Run each benchmark that is asked for once; then again those of which a case is low."""
    until = now() + CHECK_S_MAX
    trials = [Trial(name, of([name], recorded), here) for name in names]
    for _ in range(TRIES + 1):  # One more, for what failed once.
        for trial in trials:
            if trial.goes_on:
                disturbed = any(run.is_disturbed for other in trials for run in other.runs)
                trial.run_once(until - now(), was_disturbed=disturbed)
    return [one for trial in trials for one in trial.judged]


def of_the_day(names: Sequence[str], day: int) -> list[str]:
    """The benchmarks in the order of a day: each comes first now and then."""
    first = day % len(names) if names else 0
    return [*names[first:], *names[:first]]


def record(names: Sequence[str], path: Path) -> None:
    """Measure, and write it down beside what is recorded of other benchmarks."""
    known = load(path) if path.exists() else {}
    date, where = datetime.now(UTC).date().isoformat(), machine()
    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    for name in names:
        runs = [run(name) for _ in range(RECORD_RUNS)]
        if any(one.is_disturbed for one in runs):
            raise Unusable(
                f"other work used the cores while {name} was measured\n"
                f"  found: over {BUSY_SHARE_MAX:.0%} of them\n"
                "  to fix: record on a machine with nothing else to do"
            )
        known = {case: one for case, one in known.items() if case not in of([name], known)}
        known |= {
            case: Recorded(
                measurements=tuple(Measurement(one.ratios[case], date, commit) for one in runs),
                machine=where,
            )
            for case in runs[0].ratios
        }
        save(path, known)
    print(f"recorded {len(known)} cases in {path}")


def show(judged: Sequence[Judged]) -> None:
    table = Table("case", "recorded", "lowest", "measured", "verdict", title="times as fast")
    for one in judged:
        past = () if one.recorded is None else one.recorded.ratios
        numbers = (median(past), min(past)) if past else (None, None)
        cells = ["" if n is None else f"{n:.2f}" for n in (*numbers, one.measured)]
        table.add_row(one.case, *cells, one.verdict)
        found = {"case": one.case, "recorded": past, "ratios": one.ratios, "verdict": one.verdict}
        print(json.dumps({"benchmark": "check", **found}))
    Console(stderr=True, width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what is measured")
    parser.add_argument("--only", nargs="+", default=list(SHORT), choices=list(SHORT))
    parser.add_argument("--file", type=Path, default=RECORDED)
    asked = parser.parse_args()
    try:
        if asked.record:
            record(asked.only, asked.file)
            return
        recorded = of(asked.only, load(asked.file))
        names = of_the_day(asked.only, datetime.now(UTC).toordinal())
        judged = measure_and_judge(names, recorded, machine())
    except OutOfTime as error:
        sys.exit(f"benchmark {error} did not end within {RUN_S_MAX} s")
    except Unusable as error:
        sys.exit(str(error))
    show(judged)
    for remark in remarks(judged):
        print(remark, file=sys.stderr)
    told = complaint(judged, commits_since)
    if told is not None:
        sys.exit(told)


if __name__ == "__main__":
    main()
