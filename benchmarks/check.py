"""Compares short forms of the benchmarks with the ratios that were recorded last.

    .venv/bin/python benchmarks/check.py [--record] [--only key_hash job ...] [--file PATH]

A ratio is how many times as fast as its peer Millrace is, in the same run on the same data; more is
better. A case whose ratio fell by more than 20% is measured again, up to twice, and the best
counts; if that is still too low, or a recorded case was not measured at all, this fails and names
it. `--record` writes what was measured to recorded.json, or another file, instead. `--only` leaves
out the other benchmarks and what is recorded of them.

Ratios say more about another machine than times do, and still not all: it is said when they were
recorded on another kind of machine. Nothing else should run meanwhile. About three minutes.
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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

HERE: Final = Path(__file__).parent
RECORDED: Final = HERE / "recorded.json"
FALL_MAX: Final = 0.2
TRIES: Final = 3
RUN_S_MAX: Final = 600

Lines = Sequence[Mapping[str, Any]]
Ratios = dict[str, float]


class Unusable(Exception):
    """What stands in the way of comparing, for a user."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A ratio as it was, when, and on what."""

    ratio: float
    date: str
    machine: str


@dataclass(frozen=True, slots=True)
class Short:
    """A short form of a benchmark: how it is run, and the ratios that its lines give."""

    arguments: tuple[str, ...]
    ratios: Callable[[Lines], Ratios]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One case: what was recorded, what was measured, and whether that is too low."""

    case: str
    recorded: float | None
    measured: float | None

    @property
    def change(self) -> float | None:
        """The measured ratio beside the recorded one, as a share above or below it."""
        if self.recorded is None or self.measured is None:
            return None
        return self.measured / self.recorded - 1

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.recorded is None:
            return "not recorded"
        if self.change is None:
            return "not measured"
        return "fell" if self.change < -FALL_MAX else "ok"

    @property
    def is_bad(self) -> bool:
        """Whether this is what the check is for."""
        return self.verdict in ("fell", "not measured")


# What the benchmarks say.
def times_as_fast(lines: Lines) -> Ratios:
    """Where `ratio` is how many times as fast as the peer Millrace is."""
    return {line["case"]: float(line["ratio"]) for line in lines if "ratio" in line}


def compiled_only(lines: Lines) -> Ratios:
    """Of key hashes: what users run."""
    return {k: v for k, v in times_as_fast(lines).items() if k.endswith("native")}


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
}


# Comparing. Pure.
def judge(recorded: Mapping[str, Recorded], measured: Mapping[str, float]) -> list[Judged]:
    """Every case that was recorded or measured."""
    return [
        Judged(
            case=case,
            recorded=recorded[case].ratio if case in recorded else None,
            measured=measured.get(case),
        )
        for case in sorted({*recorded, *measured})
    ]


def of(benchmarks: Iterable[str], recorded: Mapping[str, Recorded]) -> dict[str, Recorded]:
    """What is recorded of these benchmarks."""
    return {
        case: one for case, one in recorded.items() if case.partition(":")[0] in set(benchmarks)
    }


def best_of(one: Mapping[str, float], other: Mapping[str, float]) -> Ratios:
    """The higher ratio of each case."""
    return {case: max(r[case] for r in (one, other) if case in r) for case in {**one, **other}}


def complaint(judged: Sequence[Judged]) -> str | None:
    """What to say if something fell; None if nothing did."""
    bad = [one for one in judged if one.is_bad]
    if not bad:
        return None
    lines = []
    for one in bad:
        if one.change is None:
            lines.append(f"  {one.case}: recorded {one.recorded:.2f}, not measured")
        else:
            lines.append(
                f"  {one.case}: recorded {one.recorded:.2f}, found {one.measured:.2f}, "
                f"{-one.change:.0%} less"
            )
    return (
        f"slower than recorded, by more than {FALL_MAX:.0%} against the peer\n"
        + "\n".join(lines)
        + "\n  to fix: find what made it slower; if it is meant to be, record it: "
        "benchmarks/check.py --record"
    )


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
            str(case): Recorded(float(one["ratio"]), str(one["date"]), str(one["machine"]))
            for case, one in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unusable(f"cannot understand {path}\n  found: {error!r}\n{fix}") from error
    if not found:
        raise Unusable(f"no recorded ratios in {path}\n  found: no case\n{fix}")
    wrong = [case for case, one in found.items() if not 0 < one.ratio < float("inf")]
    if wrong:
        raise Unusable(
            f"cannot understand {path}\n  found: {wrong[0]}: ratio {found[wrong[0]].ratio}\n{fix}"
        )
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


# Running.
def run(name: str) -> Ratios:
    """Run the short form of a benchmark; its ratios by case, under its name."""
    short = SHORT[name]
    begun = time.monotonic()
    command = [sys.executable, str(HERE / f"{name}.py"), *short.arguments]
    print(f"running {' '.join(command[1:])}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=RUN_S_MAX
        )
    except subprocess.CalledProcessError as error:
        last = "\n    ".join(error.stderr.strip().splitlines()[-12:])
        raise Unusable(f"benchmark {name} failed\n    {last}") from error
    except subprocess.TimeoutExpired as error:
        raise Unusable(f"benchmark {name} did not end within {RUN_S_MAX} s") from error
    print(f"  took {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    ratios = short.ratios(json_lines(done.stdout))
    if not ratios:
        raise Unusable(f"benchmark {name} gave no ratio\n  found: {done.stdout[-500:]!r}")
    return {f"{name}: {case}": round(ratio, 3) for case, ratio in ratios.items()}


def json_lines(text: str) -> list[dict[str, Any]]:
    """The lines that are for programs; tables for people stand between them."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def measure_and_judge(names: Sequence[str], recorded: Mapping[str, Recorded]) -> list[Judged]:
    """Run what is asked for; again, where something fell."""
    out: list[Judged] = []
    for name in names:
        known, measured = of([name], recorded), Ratios()
        for _ in range(TRIES):
            measured = best_of(measured, run(name))
            judged = judge(known, measured)
            if not any(one.is_bad for one in judged):
                break
        out += judged
    return out


def record(names: Sequence[str], path: Path) -> None:
    """Measure, and write it down beside what is recorded of other benchmarks."""
    known = load(path) if path.exists() else {}
    date, where = datetime.now(UTC).date().isoformat(), machine()
    for name in names:
        measured = run(name)
        known = {case: one for case, one in known.items() if case not in of([name], known)}
        known |= {case: Recorded(ratio, date, where) for case, ratio in measured.items()}
        save(path, known)
    print(f"recorded {len(known)} cases in {path}")


def show(judged: Sequence[Judged]) -> None:
    table = Table("case", "recorded", "measured", "change", "verdict", title="times as fast")
    for one in judged:
        numbers = ["" if n is None else f"{n:.2f}" for n in (one.recorded, one.measured)]
        change = "" if one.change is None else f"{one.change:+.0%}"
        table.add_row(one.case, *numbers, change, one.verdict)
        print(json.dumps({"benchmark": "check", **asdict(one), "verdict": one.verdict}))
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
        others = sorted({one.machine for one in recorded.values()} - {machine()})
        if others:
            print(f"recorded on another machine: {others[0]}", file=sys.stderr)
        judged = measure_and_judge(asked.only, recorded)
    except Unusable as error:
        sys.exit(str(error))
    show(judged)
    told = complaint(judged)
    if told is not None:
        sys.exit(told)


if __name__ == "__main__":
    main()
