"""The engine knows the vectorised functions of a query; their errors are those of values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.engine import duckdb_instances
from millrace.engine.duckdb_engine import Engine
from millrace.engine.task_inputs import TaskInput
from millrace.errors import TaskFailed
from millrace.sql.vectorised import vectorised_function
from millrace.sql.vectorised.vectorised_function import ValueRefused, vectorised

WORDS = pa.schema({"word": pa.string()})


@pytest.fixture(autouse=True)
def _own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of a test leave with it, and so do instances that know them."""
    monkeypatch.setattr(duckdb_instances, "_idle", [])
    known = dict(vectorised_function.VECTORISED)
    monkeypatch.setattr(vectorised_function, "VECTORISED", known)
    monkeypatch.setattr("millrace.sql.vectorised.function_catalog.VECTORISED", known)


def answer(tmp_path: Path, sql: str, *words: str | None) -> list[str | None]:
    engine = Engine(memory_bytes_max=1 << 28, spill_folder=str(tmp_path), time_zone="UTC")
    rows = pa.table({"word": pa.array(words, pa.string())})
    batches = engine.run(sql, {"input_0": TaskInput(rows.to_reader)}, WORDS)
    return list(pa.Table.from_batches(batches, WORDS).column("word").to_pylist())


def test_a_query_calls_a_function_over_arrow_arrays(tmp_path: Path) -> None:
    sizes: list[int] = []

    def turned(words: pa.ChunkedArray) -> pa.ChunkedArray:
        sizes.append(len(words))
        return pc.utf8_reverse(words)

    vectorised("mr_turned_1", ["VARCHAR"], "VARCHAR", turned)
    query = "SELECT mr_turned_1(word) AS word FROM input_0"

    assert answer(tmp_path, query, "ab", None, "") == ["ba", None, ""]
    assert answer(tmp_path, query, *["xy"] * 5000) == ["yx"] * 5000
    assert sizes == [3, 2048, 2048, 904]


def test_a_refused_value_is_told_in_the_functions_words(tmp_path: Path) -> None:
    def refuse(words: pa.ChunkedArray) -> pa.ChunkedArray:
        raise ValueRefused(f"{words[0]} is not a word")

    vectorised("mr_refuse_1", ["VARCHAR"], "VARCHAR", refuse)
    with pytest.raises(TaskFailed) as error:
        answer(tmp_path, "SELECT mr_refuse_1(word) AS word FROM input_0", "4")

    what, *_ = str(error.value).splitlines()
    assert what == "a value cannot be calculated with: 4 is not a word"


def test_another_error_of_a_function_is_not_of_a_value(tmp_path: Path) -> None:
    vectorised("mr_broken_1", ["VARCHAR"], "VARCHAR", lambda _: 1 // 0)
    with pytest.raises(TaskFailed, match=r"a query failed in a task\n  found: .*ZeroDivisionError"):
        answer(tmp_path, "SELECT mr_broken_1(word) AS word FROM input_0", "4")
