"""Questions in SQL over tables in memory: what is read for them, and what they may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.engine.questions.table_question import Equalities, QuestionLimits, ask
from millrace.errors import UserError

KEYS = {"calls": ("job", "step"), "runs": ("run",)}
CALLS = pa.table({"job": ["a", "a", "b"], "step": ["x", "y", "x"], "usd": [1.0, 2.0, 4.0]})
RUNS = pa.table({"run": [1, 2]})


def asked(question: str) -> tuple[list[Any], dict[str, Equalities]]:
    seen: dict[str, Equalities] = {}

    def read(name: str, equal: Equalities) -> pa.Table:
        seen[name] = equal
        return CALLS if name == "calls" else RUNS

    return list(ask(question, KEYS, read).rows.to_pydict().values()), seen


def test_only_tables_that_are_named_are_read() -> None:
    answer, seen = asked("SELECT job, sum(usd) AS usd FROM calls GROUP BY 1 ORDER BY 1")

    assert answer == [["a", "b"], [3.0, 4.0]]
    assert seen == {"calls": {}}


@pytest.mark.parametrize(
    ("where", "equal"),
    [
        ("job = 'a'", {"job": "a"}),
        ("job = 'a' AND (step = 'x') AND usd > 0", {"job": "a", "step": "x"}),
        ("calls.job = 'a'", {"job": "a"}),
        ("job = 'a' OR step = 'x'", {}),
        ("NOT job = 'a'", {}),
        ("usd = 1", {}),
        ("job = step", {}),
    ],
)
def test_what_a_key_must_equal_is_told_to_the_reader(where: str, equal: dict[str, str]) -> None:
    answer, seen = asked(f"SELECT count(*) AS n FROM calls WHERE {where}")

    assert seen == {"calls": equal}
    assert len(answer[0]) == 1


@pytest.mark.parametrize(
    "question",
    [
        "SELECT 1 FROM calls c JOIN runs r ON true WHERE c.job = 'a'",
        "SELECT 1 FROM calls WHERE job = 'a' UNION ALL SELECT 1 FROM calls",
        "SELECT 1 FROM (VALUES ('a')) v(job) WHERE EXISTS (SELECT 1 FROM calls WHERE v.job = 'a')",
    ],
)
def test_a_condition_that_may_be_about_other_rows_is_told_to_nobody(question: str) -> None:
    assert asked(question)[1]["calls"] == {}


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("SELECT * FROM '/etc/passwd'", "system table"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("COPY calls TO '/tmp/never'", "a query"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SELECT * FROM call", "no system table 'call'"),
        ("SELECT job FROM", "no SQL|cannot be answered"),
        ("SELECT nothing FROM calls", "cannot be answered"),
        ("ATTACH '/tmp/x.db'", "a query"),
        ("SET enable_external_access = true", "a query"),
    ],
)
def test_a_question_reads_and_writes_nothing_else(question: str, found: str) -> None:
    with pytest.raises(UserError, match=found) as raised:
        asked(question)

    assert "to fix:" in str(raised.value)
    assert not Path("/tmp/never").exists()  # noqa: S108 - it must not be there


def test_names_of_a_with_are_not_taken_for_tables() -> None:
    answer, seen = asked("WITH runs AS (SELECT 7 AS run) SELECT run FROM runs")

    assert answer == [[7]]
    assert seen == {}


@pytest.mark.parametrize(
    ("question", "answer", "read"),
    [
        ("WITH runs AS (SELECT * FROM runs WHERE run > 1) SELECT run FROM runs", [[2]], {"runs"}),
        (
            "WITH a AS (FROM runs), runs AS (SELECT run + 1 AS run FROM a) FROM runs",
            [[2, 3]],
            {"runs"},
        ),
        ("SELECT (WITH runs AS (SELECT 9 AS run) SELECT max(run) FROM runs) AS n", [[9]], set()),
        (
            (
                "WITH RECURSIVE runs AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM runs "
                "WHERE n < 3) SELECT n FROM runs"
            ),
            [[1, 2, 3]],
            set(),
        ),
        (
            (
                "SELECT r.run FROM runs r WHERE EXISTS (WITH runs AS (SELECT 2 AS n) "
                "SELECT 1 FROM runs WHERE n = r.run)"
            ),
            [[2]],
            {"runs"},
        ),
    ],
)
def test_a_name_is_a_with_where_that_is_seen_and_else_a_table(
    question: str, answer: list[Any], read: set[str]
) -> None:
    found, seen = asked(question)

    assert (found, set(seen)) == (answer, read)


def test_tables_are_pivoted() -> None:
    jobs, *dollars = asked("PIVOT calls ON step USING sum(usd) GROUP BY job")[0]
    assert dict(zip(jobs, zip(*dollars, strict=True), strict=True)) == {
        "a": (1.0, 2.0),
        "b": (4.0, None),
    }
    answer, seen = asked("SELECT * FROM calls PIVOT (sum(usd) FOR step IN ('x')) WHERE job = 'a'")
    assert (answer, seen) == ([["a"], [1.0]], {"calls": {}})


LIMITS = QuestionLimits(seconds=0.3, memory_bytes=64 * 1024 * 1024, rows_max=1_000)
HARD = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range * b.range % 7 = 3"


@pytest.mark.parametrize(
    ("question", "found"),
    [
        (HARD, "takes too long"),
        ("SELECT list(range) FROM range(100000000)", "too much memory|takes too long"),
    ],
)
def test_a_question_beyond_its_limits_ends(question: str, found: str) -> None:
    with pytest.raises(UserError, match=found) as raised:
        ask(question, KEYS, lambda *_: RUNS, LIMITS)

    assert "to fix:" in str(raised.value)


@pytest.mark.parametrize(("rows", "is_cut"), [(999, False), (1_000, False), (1_001, True)])
def test_an_answer_is_cut_behind_its_last_row(rows: int, *, is_cut: bool) -> None:
    answer = ask(f"SELECT range AS n FROM range({rows})", KEYS, lambda *_: RUNS, LIMITS)

    assert (answer.rows.num_rows, answer.is_cut) == (min(rows, 1_000), is_cut)
    assert answer.rows["n"].to_pylist() == list(range(min(rows, 1_000)))
