"""Functions of ours in the engine: entered once, called like its own, and part of identity."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.engine.function_install import install_functions
from millrace.engine.stage_work import PassThrough, QueryWork
from millrace.sql import engine_functions
from millrace.sql.engine_functions import macro, vector_function, versions_in


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[str, engine_functions.Macro | engine_functions.VectorFunction] = {}
    monkeypatch.setattr("millrace.engine.function_install.ENGINE_FUNCTIONS", table)
    monkeypatch.setattr(engine_functions, "ENGINE_FUNCTIONS", table)
    engine_functions._with_called.cache_clear()
    macro("spark_twice", "x", "x + x")
    macro("spark_four_times", "x", "spark_twice(x) + spark_twice(x)")

    @vector_function("spark_or_zero", ("INTEGER",), "INTEGER", version=3)
    def or_zero(numbers: pa.Array) -> pa.Array:
        return pc.fill_null(numbers, 0)


@pytest.mark.usefixtures("entered")
def test_macros_and_functions_over_arrays_are_called_like_the_engines_own() -> None:
    with duckdb.connect() as connection:
        install_functions(connection)
        rows = connection.sql(
            "SELECT spark_four_times(n), spark_or_zero(n) FROM (VALUES (1), (NULL)) t(n)"
        ).fetchall()
    assert rows == [(4, 1), (None, 0)]


@pytest.mark.usefixtures("entered")
def test_a_query_names_the_versions_of_all_functions_it_uses_also_inside_macros() -> None:
    versions = versions_in("SELECT spark_four_times(n), spark_or_zero(n), spark_unknown(n)")
    assert sorted(versions) == ["spark_four_times", "spark_or_zero", "spark_twice"]
    assert versions["spark_or_zero"] == "3"
    assert versions_in("SELECT upper(s)") == {}


@pytest.mark.usefixtures("entered")
def test_another_version_of_a_function_is_other_work() -> None:
    def described() -> object:
        schema = pa.schema({"n": pa.int32()})
        work = QueryWork(
            sql="SELECT spark_or_zero(n)", schema=schema, time_zone="UTC", below=(PassThrough(),)
        )
        return work.describe()

    before = described()
    del engine_functions.ENGINE_FUNCTIONS["spark_or_zero"]
    vector_function("spark_or_zero", ("INTEGER",), "INTEGER", version=4)(lambda x: x)
    assert described() != before
