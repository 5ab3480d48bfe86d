"""`make bench-check` names the cases whose ratio fell, and nothing else stops it quietly."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest
from benchmarks import check, other_work
from benchmarks.check import Measurement, OutOfTime, Recorded, Run, Unusable
from benchmarks.other_work import Look, OtherWork, others_share


def recorded(**ratios: float) -> dict[str, Recorded]:
    return {f"b: {case}": record_of(ratio) for case, ratio in ratios.items()}


def record_of(*ratios: float, machine: str = "here") -> Recorded:
    made = tuple(Measurement(ratio, "2026-11-15", "abc123") for ratio in ratios)
    return Recorded(measurements=made, machine=machine)


def measured(*, is_disturbed: bool = False, **ratios: float) -> Run:
    return Run({f"b: {case}": ratio for case, ratio in ratios.items()}, is_disturbed)


def no_commits(commit: str) -> str:
    return f"  since {commit}, no commits"


def judged_after(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, Recorded], *runs: Run
) -> list[check.Judged]:
    """What a check says whose runs end so; it must need all of them."""
    left = list(runs)
    monkeypatch.setattr(check, "run", lambda *_: left.pop(0))
    judged = check.measure_and_judge(["b"], known, "here")
    assert left == []
    return judged


def test_a_ratio_a_fifth_below_all_recorded_ones_is_named_with_the_commits_since() -> None:
    known = recorded(group=4.0) | {"b: join": record_of(6.0, 5.0, 5.5)}
    judged = check.judge(known, [measured(join=3.9, group=4.0)] * 3, "here")
    assert [(one.case, one.verdict) for one in judged] == [("b: group", "ok"), ("b: join", "fell")]
    told = check.complaint(judged, no_commits)
    assert told is not None
    assert "b: join: recorded 5.50, at least 5.00; found 3.90" in told
    assert "b: group" not in told
    assert "since abc123, no commits" in told
    assert "git bisect start HEAD abc123" in told
    assert "check.py --only b\n" in told
    assert "--record" in told


@pytest.mark.parametrize("now", [4.1, 5.0, 50.0])
def test_a_ratio_that_rose_or_fell_a_little_is_fine(now: float) -> None:
    judged = check.judge(recorded(join=5.0), [measured(join=now)], "here")
    assert check.complaint(judged, no_commits) is None


def test_a_recorded_case_that_was_not_measured_is_named() -> None:
    told = check.complaint(check.judge(recorded(join=5.0), [measured()], "here"), no_commits)
    assert told is not None
    assert "b: join: recorded 5.00, at least 5.00; not measured" in told


def test_a_case_that_was_never_recorded_is_shown_and_does_no_harm() -> None:
    judged = check.judge({}, [measured(join=5.0)], "here")
    assert [one.verdict for one in judged] == ["not recorded"]
    assert check.complaint(judged, no_commits) is None


def test_only_what_is_recorded_of_the_benchmarks_asked_for_counts() -> None:
    known = recorded(join=5.0) | {"bb: x": record_of(1.0)}
    assert list(check.of(["b"], known)) == ["b: join"]
    assert list(check.of([], known)) == []


def test_a_case_that_is_low_is_measured_again_and_the_median_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [measured(join=1.0), measured(join=4.9), measured(join=4.8)]
    (one,) = judged_after(monkeypatch, recorded(join=5.0), *runs)
    assert (one.measured, one.verdict) == (4.8, "ok")


def test_a_case_that_is_right_at_once_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = judged_after(monkeypatch, recorded(join=5.0), measured(join=5.0))
    assert one.verdict == "ok"


def test_a_case_that_stays_low_fell(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = judged_after(monkeypatch, recorded(join=5.0), *[measured(join=1.0)] * check.TRIES)
    assert one.is_bad


def test_on_busy_cores_a_low_case_is_told_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [measured(join=1.0), *[measured(is_disturbed=True, join=1.0)] * 2]
    judged = judged_after(monkeypatch, recorded(join=5.0), *runs)
    assert check.complaint(judged, no_commits) is None
    (remark,) = check.remarks(judged)
    assert remark == (
        "b: join: recorded 5.00, at least 5.00; found 1.00; not compared: other work used over 25% "
        "of the cores"
    )


def test_on_another_machine_a_low_case_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"b: join": record_of(5.0, machine="there")}
    judged = judged_after(monkeypatch, known, *[measured(join=1.0)] * check.TRIES)
    assert check.complaint(judged, no_commits) is None
    (remark,) = check.remarks(judged)
    assert remark.endswith("not compared: recorded on another kind of machine")


def test_the_commits_since_a_case_was_measured_last_are_searched() -> None:
    def of_commits(*commits: str) -> Recorded:
        made = tuple(Measurement(5.0, "2026-11-15", commit) for commit in commits)
        return Recorded(measurements=made, machine="here")

    known = {"b: join": of_commits("old", "late"), "c: sort": of_commits("old")}
    slow = Run({"b: join": 1.0, "c: sort": 1.0})

    told = check.complaint(check.judge(known, [slow] * 3, "here"), no_commits)

    assert told is not None
    assert (
        "bisect start HEAD late; git bisect run .venv/bin/python benchmarks/check.py --only b\n"
        in told
    )
    assert (
        "bisect start HEAD old; git bisect run .venv/bin/python benchmarks/check.py --only c\n"
        in told
    )


def test_every_benchmark_runs_once_before_a_low_one_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"b: join": record_of(5.0), "c: sort": record_of(5.0)}
    begun: list[str] = []

    def run(name: str, _limit_s: float) -> Run:
        begun.append(name)
        return Run({"b: join": 1.0} if name == "b" else {"c: sort": 5.0})

    monkeypatch.setattr(check, "run", run)
    check.measure_and_judge(["b", "c"], known, "here")
    assert begun == ["b", "c", "b", "b"]


@pytest.mark.parametrize("busy", [0.0, 1.0])
def test_a_case_that_never_ran_is_an_error_on_idle_cores(
    monkeypatch: pytest.MonkeyPatch, busy: float
) -> None:
    def run(name: str, _limit_s: float) -> Run:
        raise OutOfTime(name)

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "busy_share", lambda: busy)
    (one,) = check.measure_and_judge(["b"], recorded(join=5.0), "here")
    assert one.verdict == ("not compared" if busy else "not measured")
    assert one.is_bad == (not busy)


@pytest.mark.parametrize(
    ("disturbed", "machine", "is_bad"),
    [(False, "here", True), (True, "here", False), (False, "there", False)],
)
def test_a_case_that_never_ran_is_no_error_behind_a_disturbed_run_or_on_another_machine(
    monkeypatch: pytest.MonkeyPatch, *, disturbed: bool, machine: str, is_bad: bool
) -> None:
    known = {"b: join": record_of(5.0), "c: sort": record_of(5.0, machine=machine)}

    def run(name: str, _limit_s: float) -> Run:
        if name == "c":
            raise OutOfTime(name)
        return measured(is_disturbed=disturbed, join=5.0)

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "busy_share", lambda: 0.0)
    judged = check.measure_and_judge(["b", "c"], known, "here")
    assert [one.is_bad for one in judged] == [False, is_bad]


def test_work_of_others_between_two_looks_counts_and_our_own_does_not() -> None:
    quiet = [Look(0, 0, 0.0), Look(200, 100, 100.0), Look(400, 200, 200.0)]
    assert others_share(quiet) == 0
    burst = [Look(0, 0, 0.0), Look(200, 0, 50.0), Look(400, 100, 150.0)]
    assert others_share(burst) == pytest.approx(150 / 400)


def test_a_program_of_ours_that_ends_unwaited_for_makes_nobody_else_busy() -> None:
    looks = [Look(0, 0, 1_000.0), Look(200, 0, 1_200.0), Look(210, 10, 100.0), Look(410, 10, 300.0)]
    assert others_share(looks) == 0
    assert others_share([]) == others_share(looks[:1]) == 0


def test_other_work_is_looked_at_while_a_benchmark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()
    looks = iter([Look(0, 0, 0.0)])

    def look() -> Look:
        first = next(looks, None)
        if first is None:
            looked.set()
        return first or Look(200, 0, 0.0)

    monkeypatch.setattr(other_work, "LOOK_S", 0.001)
    monkeypatch.setattr(other_work, "look", look)
    with OtherWork() as others:
        assert looked.wait(10)
    assert others.share == 1


def test_each_benchmark_comes_first_on_some_day() -> None:
    orders = [check.of_the_day(list(check.SHORT), day) for day in range(len(check.SHORT))]
    assert {order[0] for order in orders} == set(check.SHORT)
    assert all(set(order) == set(check.SHORT) for order in orders)


def test_what_there_was_no_time_to_repeat_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []

    def run(_name: str, limit_s: float) -> Run:
        limits.append(limit_s)
        if limit_s <= 0:
            raise OutOfTime
        return measured(join=1.0)

    monkeypatch.setattr(check, "run", run)
    clock = iter([0.0, 100.0, 400.0])
    judged = check.measure_and_judge(["b"], recorded(join=5.0), "here", lambda: next(clock))
    assert limits == [check.CHECK_S_MAX - 100, check.CHECK_S_MAX - 400]
    assert check.complaint(judged, no_commits) is None
    (remark,) = check.remarks(judged)
    assert remark.endswith(f"not compared: the check ends after {check.CHECK_S_MAX} s")


@pytest.mark.parametrize("busy", [0.0, 1.0])
def test_a_benchmark_that_fails_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, busy: float
) -> None:
    ends: list[Run | Unusable] = [Unusable("no"), measured(join=5.0)]

    def run(*_: object) -> Run:
        end = ends.pop(0)
        if isinstance(end, Unusable):
            raise end
        return end

    monkeypatch.setattr(check, "run", run)
    monkeypatch.setattr(check, "busy_share", lambda: busy)
    (one,) = check.measure_and_judge(["b"], recorded(join=5.0), "here")
    assert one.verdict == "ok"

    ends += [Unusable("no"), Unusable("not again")]
    if busy:
        judged = check.measure_and_judge(["b"], recorded(join=5.0), "here")
        (remark,) = check.remarks(judged)
        assert remark.endswith("not compared: its benchmark failed twice on busy cores")
        assert check.complaint(judged, no_commits) is None
    else:
        with pytest.raises(Unusable, match="not again"):
            check.measure_and_judge(["b"], recorded(join=5.0), "here")


def test_a_run_without_time_is_not_begun_and_one_that_is_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(check, "HERE", tmp_path)
    for limit_s in (0, 0.2):
        with pytest.raises(OutOfTime, match="job"):
            check.run("job", limit_s)


def test_a_checkout_that_git_does_not_know_has_no_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "HERE", tmp_path)
    assert check.commits_since("abc123") == "  since: abc123 (git does not know it here)"


def test_the_share_of_the_cores_in_use_is_between_none_and_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(other_work, "LOOK_S", 0.01)
    assert 0 <= other_work.busy_share() <= 1


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
        '{"b: join": {"measurements": [5.0], "machine": ""}}',
        '{"b: join": {"measurements": [], "machine": ""}}',
        '{"b: join": {"measurements": [{"ratio": 1.0, "date": ""}], "machine": ""}}',
        '{"b: join": {"measurements": [{"ratio": "x", "date": "", "commit": ""}], "machine": ""}}',
        '{"b: join": {"measurements": [{"ratio": 0, "date": "", "commit": ""}], "machine": ""}}',
        '{"b: join": {"measurements": [{"ratio": NaN, "date": "", "commit": ""}], "machine": ""}}',
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


def test_recording_keeps_all_ratios_and_what_is_known_of_other_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recorded.json"
    check.save(path, recorded(join=5.0, gone=1.0) | {"other: x": record_of(2.0)})
    ratios = iter([6.0, 6.5, 5.5, 6.0, 6.0])
    monkeypatch.setattr(check, "run", lambda _: measured(join=next(ratios)))
    check.record(["b"], path)
    found = check.load(path)
    assert found.keys() == {"b: join", "other: x"}
    assert found["other: x"] == record_of(2.0)
    assert found["b: join"].ratios == (6.0, 6.5, 5.5, 6.0, 6.0)
    assert found["b: join"].machine == check.machine()


def test_nothing_is_recorded_on_busy_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recorded.json"
    monkeypatch.setattr(check, "run", lambda _: measured(is_disturbed=True, join=6.0))
    with pytest.raises(Unusable, match="other work used the cores while b was measured"):
        check.record(["b"], path)
    assert not path.exists()


def test_a_failure_ends_with_its_name_and_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recorded.json"
    check.save(path, {"job: small": record_of(1.0, machine=check.machine())})
    monkeypatch.setattr(check, "run", lambda *_: Run({"job: small": 0.7}))
    monkeypatch.setattr(sys, "argv", ["check.py", "--only", "job", "--file", str(path)])
    with pytest.raises(SystemExit, match="job: small: recorded 1.00, at least 1.00; found 0.70"):
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
