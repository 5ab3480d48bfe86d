"""`make bench-check` names the cases whose ratio fell, and nothing else stops it quietly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks import check
from benchmarks.check import Recorded, Unusable


def recorded(**ratios: float) -> dict[str, Recorded]:
    return {f"b: {case}": Recorded(ratio, "2026-11-15", "here") for case, ratio in ratios.items()}


def measured(**ratios: float) -> dict[str, float]:
    return {f"b: {case}": ratio for case, ratio in ratios.items()}


def test_a_ratio_that_fell_by_more_than_a_fifth_is_named_with_both_numbers() -> None:
    judged = check.judge(recorded(join=5.0, group=4.0), measured(join=3.9, group=4.0))
    assert [(one.case, one.verdict) for one in judged] == [("b: group", "ok"), ("b: join", "fell")]
    told = check.complaint(judged)
    assert told is not None
    assert "b: join: recorded 5.00, found 3.90, 22% less" in told
    assert "b: group" not in told
    assert "--record" in told


@pytest.mark.parametrize("now", [4.1, 5.0, 50.0])
def test_a_ratio_that_rose_or_fell_a_little_is_fine(now: float) -> None:
    judged = check.judge(recorded(join=5.0), measured(join=now))
    assert check.complaint(judged) is None


def test_a_recorded_case_that_was_not_measured_is_named() -> None:
    told = check.complaint(check.judge(recorded(join=5.0), measured()))
    assert told is not None
    assert "b: join: recorded 5.00, not measured" in told


def test_a_case_that_was_never_recorded_is_shown_and_does_no_harm() -> None:
    judged = check.judge({}, measured(join=5.0))
    assert [one.verdict for one in judged] == ["not recorded"]
    assert check.complaint(judged) is None


def test_only_what_is_recorded_of_the_benchmarks_asked_for_counts() -> None:
    known = recorded(join=5.0) | {"bb: x": Recorded(1.0, "", "")}
    assert list(check.of(["b"], known)) == ["b: join"]
    assert list(check.of([], known)) == []


def test_a_case_that_fell_is_measured_again_and_the_best_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [measured(join=1.0, group=4.0), measured(join=4.9, group=1.0)]
    monkeypatch.setattr(check, "run", lambda _: runs.pop(0))
    judged = check.measure_and_judge(["b"], recorded(join=5.0, group=4.0))
    assert [one.measured for one in judged] == [4.0, 4.9]
    assert check.complaint(judged) is None
    assert runs == []


def test_a_case_that_stays_low_is_not_measured_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def run(name: str) -> dict[str, float]:
        runs.append(name)
        return measured(join=1.0)

    monkeypatch.setattr(check, "run", run)
    assert check.complaint(check.measure_and_judge(["b"], recorded(join=5.0))) is not None
    assert len(runs) == check.TRIES


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    check.save(path, recorded(join=5.0, group=4.0))
    assert check.load(path) == recorded(join=5.0, group=4.0)
    assert [each.name for each in tmp_path.iterdir()] == ["recorded.json"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"b: join": 5.0}',
        '{"b: join": {"ratio": 5.0}}',
        '{"b: join": {"ratio": "much", "date": "", "machine": ""}}',
        '{"b: join": {"ratio": 0, "date": "", "machine": ""}}',
        '{"b: join": {"ratio": NaN, "date": "", "machine": ""}}',
    ],
)
def test_a_file_that_cannot_be_understood_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recorded.json"
    path.write_text(text)
    with pytest.raises(Unusable, match=r"recorded.json\n  found: .*\n  to fix: .*--record"):
        check.load(path)


def test_a_file_that_is_not_there_is_told_from_one_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="no recorded ratios at .*nowhere.json"):
        check.load(tmp_path / "nowhere.json")


def test_recording_keeps_what_is_known_of_other_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recorded.json"
    check.save(path, recorded(join=5.0, gone=1.0) | {"other: x": Recorded(2.0, "then", "there")})
    monkeypatch.setattr(check, "run", lambda _: measured(join=6.0))
    check.record(["b"], path)
    found = check.load(path)
    assert {case: one.ratio for case, one in found.items()} == {"b: join": 6.0, "other: x": 2.0}
    assert found["other: x"] == Recorded(2.0, "then", "there")
    assert found["b: join"].machine == check.machine()


def test_a_failure_ends_with_its_name_and_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recorded.json"
    check.save(path, {"job: small": Recorded(1.0, "", check.machine())})
    monkeypatch.setattr(check, "run", lambda _: {"job: small": 0.7})
    monkeypatch.setattr(sys, "argv", ["check.py", "--only", "job", "--file", str(path)])
    with pytest.raises(SystemExit, match="job: small: recorded 1.00, found 0.70, 30% less"):
        check.main()
    path.write_text("{")
    with pytest.raises(SystemExit, match="cannot understand"):
        check.main()


def test_lines_of_benchmarks_become_ratios_of_which_more_is_better() -> None:
    text = 'a table\n{"case": "int", "ratio": 4}\n{"case": "memory", "mib": 3}\n'
    assert check.times_as_fast(check.json_lines(text)) == {"int": 4.0}
    assert check.times_as_long(check.json_lines(text)) == {"int": 0.25}
    hashes = [{"case": "int64 native", "ratio": 2}, {"case": "int64 fallback", "ratio": 0.1}]
    assert check.compiled_only(hashes) == {"int64 native": 2.0}
    results = [{"case": "one journal", "writers": 8, "rows_per_s": 300.0}]
    journals = json.dumps({"plain_file": 100.0, "results": results})
    found = check.beside_a_plain_file(check.json_lines(journals))
    assert found == {"append to one journal, 8 writers": 3.0}


@pytest.mark.parametrize(
    ("code", "found"),
    [("print('no ratio here')", "gave no ratio"), ("raise ValueError('why')", "ValueError: why")],
)
def test_a_benchmark_that_fails_or_says_nothing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, found: str
) -> None:
    (tmp_path / "job.py").write_text(code)
    monkeypatch.setattr(check, "HERE", tmp_path)
    with pytest.raises(Unusable, match=f"(?s)benchmark job .*{found}"):
        check.run("job")


def test_every_short_form_is_of_a_benchmark_that_exists() -> None:
    for name in check.SHORT:
        assert (check.HERE / f"{name}.py").exists()


def test_what_is_recorded_is_of_benchmarks_that_are_run() -> None:
    known = check.load(check.RECORDED) if check.RECORDED.exists() else {}
    assert check.of(check.SHORT, known) == known
