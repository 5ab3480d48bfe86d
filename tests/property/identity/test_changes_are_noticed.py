"""A law: where the results of a function differ, its identity does.

Programs of several modules are changed, and the old and the new one run in fresh processes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.laws import examples, seeds
from tests.property.identity import module_features, object_features
from tests.property.identity.features import Feature
from tests.property.identity.fresh import Outcome, Runner, runner
from tests.property.identity.programs import edited, mutated, program_of, write

FEATURES = [*module_features.FEATURES, *object_features.FEATURES]


@pytest.fixture(scope="module", name="fresh")
def fresh_processes() -> Iterator[Runner]:
    with runner() as started:
        yield started


def differ(before: Outcome, after: Outcome) -> bool:
    """Whether the second program's work would be done again."""
    return not (before.recognised and after.recognised and before.identity == after.identity)


@pytest.mark.parametrize(
    "in_main",
    [
        pytest.param(True, marks=pytest.mark.slow, id="in a script"),
        pytest.param(False, id="in a module"),
    ],
)
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_an_edit_that_changes_results_changes_the_identity(
    feature: Feature, *, in_main: bool, fresh: Runner, tmp_path: Path
) -> None:
    program = program_of([feature], in_main=in_main)
    outcomes = []
    for name, text in (("old", program), ("same", program), ("new", edited(program, feature))):
        write(text, tmp_path / name)
        outcomes.append(fresh.run(tmp_path / name))
    old, same, new = outcomes

    assert "broken" not in old.result + new.result
    assert old.result != new.result, "the edit changes nothing: it shows nothing"
    assert old == same, "the same program in another process is not recognised"
    assert differ(old, new)


def test_random_changes_to_programs_of_many_modules_are_never_missed(
    fresh: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = explore(range(examples(200)), 4, fresh, tmp_path)
    with capsys.disabled():
        print("\n" + told(counts))  # noqa: T201 - how many reruns were needless is wanted
    assert counts["changed"] > counts["equal"] / 10, "hardly any change changed a result"


@pytest.mark.slow
def test_thousands_of_random_changes_are_never_missed(
    fresh: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = explore(seeds(600, first=10_000), 6, fresh, tmp_path)
    with capsys.disabled():
        print("\n" + told(counts))  # noqa: T201 - how many reruns were needless is wanted
    assert counts["mutations"] > 5 * len(seeds(600))


def explore(seeds: range, changes: int, fresh: Runner, folder: Path) -> Counter[str]:
    """Change programs at random; raises at the first change that is missed."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)  # noqa: S311 - a seed replays it
        features = chance.sample(FEATURES, chance.randint(1, 6))
        program = program_of(features, in_main=chance.random() < 0.5)
        home = folder / str(seed)
        write(program, home / "old")
        old = fresh.run(home / "old")
        assert "broken" not in old.result, f"seed {seed}: {old.result}"
        assert "looking at it" not in old.identity, f"seed {seed}: {old.identity}"
        for number in range(changes):
            made = mutated(program, chance)
            if made is None:
                continue
            write(made[0], home / str(number))
            new = fresh.run(home / str(number))
            assert "crashed" not in new.identity, f"seed {seed}: {new.identity} after {made[1]}"
            counts["mutations"] += 1
            counts["recognised"] += old.recognised
            if old.result == new.result:
                counts["equal"] += 1
                counts["needless"] += differ(old, new) and old.recognised
            else:
                counts["changed"] += 1
                names = [feature.name for feature in features]
                assert differ(old, new), f"seed {seed}: missed {made[1]} in a program of {names}"
    return counts


def told(counts: Counter[str]) -> str:
    """What was tried, in a line."""
    return (
        f"{counts['mutations']} changes of programs: {counts['changed']} changed a result, none "
        f"missed; {counts['equal']} changed none, of these {counts['needless']} cost a rerun; "
        f"{counts['recognised']} were of functions that are recognised"
    )
