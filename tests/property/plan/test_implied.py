"""The law of what conditions imply: no row for which the condition is true is left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.sql.expressions import parse
from millrace.sql.implied_conditions import implied_condition

COLUMNS = ("a", "b", "c")
SCHEMA = pa.schema([(name, pa.int32()) for name in COLUMNS])
_VALUES = (None, 0, 1, 2)
ROWS = pa.Table.from_pylist(
    [dict(zip(COLUMNS, row, strict=True)) for row in product(_VALUES, repeat=len(COLUMNS))],
    schema=SCHEMA,
)

_OPERAND = st.sampled_from([*COLUMNS, "0", "1", "2"])
_LEAF = st.one_of(
    st.builds("{} {} {}".format, _OPERAND, st.sampled_from(["=", "<", ">=", "<=>"]), _OPERAND),
    st.builds("{} IS NULL".format, st.sampled_from(COLUMNS)),
    st.builds("{} BETWEEN 0 AND {}".format, st.sampled_from(COLUMNS), _OPERAND),
    st.builds("{} IN (1, {})".format, st.sampled_from(COLUMNS), _OPERAND),
)
CONDITIONS = st.recursive(
    _LEAF,
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def rows() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as db:
        db.execute("SET threads = 1")
        db.register("all_rows", ROWS)
        db.execute("CREATE TABLE rows AS FROM all_rows")
        yield db


@given(CONDITIONS, st.frozensets(st.sampled_from(COLUMNS), min_size=1))
def test_where_a_condition_is_true_so_is_what_it_implies(
    rows: duckdb.DuckDBPyConnection, text: str, columns: frozenset[str]
) -> None:
    condition = parse(text, SCHEMA, call="test")

    weaker = implied_condition(condition, SCHEMA, columns)

    if weaker is not None:
        assert weaker.columns <= columns
        left_out = f"({condition.sql}) AND ({weaker.sql}) IS NOT TRUE"
        assert rows.execute(f"SELECT * FROM rows WHERE {left_out}").fetchall() == []


@given(CONDITIONS)
def test_of_all_its_columns_a_condition_implies_itself(
    rows: duckdb.DuckDBPyConnection, text: str
) -> None:
    condition = parse(text, SCHEMA, call="test")

    weaker = implied_condition(condition, SCHEMA, frozenset(COLUMNS))

    if condition.columns:
        assert weaker is not None
        other = f"({condition.sql}) IS DISTINCT FROM ({weaker.sql})"
        assert rows.execute(f"SELECT * FROM rows WHERE {other}").fetchall() == []
