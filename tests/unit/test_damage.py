"""A damaged file at rest gives the right answer, or an error that names it, to every look."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit import at_rest_kit as kit

DAMAGES = ("flip", "cut", "empty", "zeros", "older", "another")
QUICK_CASES = 24
SLOW_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Mills:
    """A workspace, the same when it was younger, another one of the same shape, and the answers."""

    whole: Path
    older: Path
    another: Path
    answers: dict[str, kit.Outcome]


@pytest.fixture(scope="module")
def mills(tmp_path_factory: pytest.TempPathFactory) -> Mills:
    root = tmp_path_factory.mktemp("at-rest")
    kit.build(root / "mill", seed=1, older=root / "older")
    kit.build(root / "another", seed=2)
    kit.copied(root / "mill", root / "seen")
    answers = kit.look(root / "seen", commands=True)
    assert [name for name, found in answers.items() if found.error is not None] == []
    return Mills(root / "mill", root / "older", root / "another", answers)


def damaged(mills: Mills, name: str, damage: str, chance: random.Random) -> bytes | None:
    """What is put in place of a file; None if this damage does nothing to it."""
    data = (mills.whole / name).read_bytes()
    match damage:
        case "flip" if data:
            at = chance.randrange(len(data))
            bad = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case "cut" if data:
            bad = data[: chance.randrange(len(data))]
        case "empty":
            bad = b""
        case "zeros":
            bad = bytes(len(data))
        case "older" | "another":
            place = (mills.older if damage == "older" else mills.another) / name
            bad = place.read_bytes() if place.is_file() else data
        case _:
            bad = data
    return None if bad == data else bad


def check(mills: Mills, scratch: Path, name: str, damage: str, seed: int, *, all_: bool) -> str:
    """Damage one file of a copy, look, and hold the law. Returns what came of it."""
    bad = damaged(mills, name, damage, random.Random(f"{name} {damage} {seed}"))  # noqa: S311
    if bad is None:
        return "nothing to damage"
    path = scratch / "mill"
    kit.copied(mills.whole, path)
    (path / name).write_bytes(bad)
    case = f"{name}: {damage}, seed {seed}"
    try:
        found = kit.look(path, commands=all_, journals=kit.is_of_journals(name))
    except BaseException as error:
        raise AssertionError(f"{case}: {error!r}") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)
    noticed = False
    for how, outcome in found.items():
        if outcome.error is not None:
            noticed = True
            assert names_it(outcome.error, name), f"{case}: {how} says: {outcome.error}"
        elif not name.startswith(kit.LEDGER) and (name, how) != ("workspace.json", "id"):
            assert outcome == mills.answers[how], f"{case}: {how} gave {outcome.answer}"
    return "noticed" if noticed else "right answers"


def names_it(text: str, name: str) -> bool:
    """Whether an error names the file; a workspace's id is at odds with every file that has it."""
    if name.startswith(kit.LEDGER) or name in text:
        return True
    return name == "workspace.json" and ("belongs to workspace" in text or "workspace.json" in text)


def test_a_damaged_file_is_noticed_by_name_or_does_no_harm(mills: Mills, tmp_path: Path) -> None:
    names = kit.files(mills.whole)
    chance = random.Random(20)  # noqa: S311
    cases = [(name, damage) for name in names for damage in DAMAGES]
    # Of each kind of file at least one, and then by chance.
    kinds = {Path(name).name if "." in name else name: name for name in names}
    chosen = [(name, chance.choice(DAMAGES[:4])) for name in sorted(kinds.values())]
    chosen += chance.sample(cases, 4)

    results = Counter(
        check(mills, tmp_path, name, damage, 0, all_=False) for name, damage in chosen[:QUICK_CASES]
    )

    assert results["noticed"] >= QUICK_CASES // 3, results


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SLOW_SEEDS))
def test_every_file_under_every_damage_is_noticed_by_name_or_does_no_harm(
    mills: Mills, tmp_path: Path, seed: int
) -> None:
    results: Counter[str] = Counter()
    for name in kit.files(mills.whole):
        for damage in DAMAGES:
            results[check(mills, tmp_path, name, damage, seed, all_=True)] += 1
    print(f"seed {seed}: {dict(results)}")  # noqa: T201 - the counts are the result

    assert results["noticed"] > results["right answers"]
