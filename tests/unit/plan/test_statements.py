"""SQL statements become plans that the engine runs: rows by rows, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.unit.statement_kit import context_of, of_table, rows_of, sql_relation

from millrace.plan.nodes.frame_scan import FrameScan
from millrace.plan.nodes.join import Join
from millrace.plan.nodes.node import Node
from millrace.plan.statements.parameters import with_arguments
from millrace.plan.statements.statement import statement_relation
from millrace.sql.parser import canonical, read
from millrace.sql.typed_sql import ExpressionRefused, NotNative

TABLES = {
    "t": of_table(pa.table({"k": [1, 2, 3, None], "v": pa.array([10, 20, 30, 40], pa.int32())})),
    "u": of_table(pa.table({"k": [1, 1, 2, 5], "w": ["a", "b", "c", None]})),
    "nulls": of_table(pa.table({"k": [1, None]})),
    "empty": of_table(pa.table({"k": pa.array([], pa.int64())})),
    "lists": of_table(
        pa.table(
            {
                "id": [1, 2, 3],
                "xs": [[5, None], [], None],
                "m": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
                "s": [[{"p": 1, "q": "x"}, None], None, []],
            }
        )
    ),
}

ROWS = {
    "SELECT v FROM t WHERE k > 1 ORDER BY v DESC": [(30,), (20,)],
    "SELECT t.k, w FROM t, u WHERE t.k = u.k ORDER BY w": [(1, "a"), (1, "b"), (2, "c")],
    "SELECT a.v FROM t a JOIN t b ON a.k = b.k + 1 ORDER BY 1": [(20,), (30,)],
    "SELECT k, w FROM t JOIN u USING (k) WHERE w > 'a' ORDER BY w": [(1, "b"), (2, "c")],
    "SELECT count(*) FROM t NATURAL LEFT JOIN u": [(5,)],
    "SELECT x.k + 1 AS n FROM (SELECT k FROM t WHERE k < 3) x ORDER BY n": [(2,), (3,)],
    "SELECT w IS NULL AS missing, count(*) AS n FROM u GROUP BY missing ORDER BY 2": [
        (True, 1),
        (False, 3),
    ],
    "SELECT k, count(*) FROM u GROUP BY 1 HAVING count(*) > 1": [(1, 2)],
    "SELECT k, max(w) AS m FROM u GROUP BY ALL ORDER BY m NULLS LAST, k": [
        (1, "b"),
        (2, "c"),
        (5, None),
    ],
    "SELECT k FROM u GROUP BY k ORDER BY count(*) DESC, k LIMIT 1": [(1,)],
    "SELECT DISTINCT k FROM u ORDER BY k": [(1,), (2,), (5,)],
    "SELECT v + 1 AS a, a * 2 AS b FROM t WHERE k = 1": [(11, 22)],
    "WITH c AS (SELECT k FROM u), d(n) AS (SELECT max(k) FROM c) SELECT n FROM d": [(5,)],
    "SELECT k FROM u UNION SELECT v FROM t WHERE v < 20 ORDER BY k": [(1,), (2,), (5,), (10,)],
    "SELECT k FROM t INTERSECT SELECT k FROM nulls ORDER BY k": [(None,), (1,)],
    "SELECT k FROM t EXCEPT SELECT k FROM u ORDER BY k": [(None,), (3,)],
    "SELECT * FROM (VALUES (1, 'x'), (2, NULL)) AS v(a, b) ORDER BY a": [(1, "x"), (2, None)],
    "SELECT id FROM range(1, 8, 3)": [(1,), (4,), (7,)],
    "SELECT 1 + 1 AS two": [(2,)],
    "SELECT * EXCEPT (v) FROM t WHERE k = 3": [(3,)],
}
SUBQUERIES = {
    "SELECT v FROM t WHERE k IN (SELECT k FROM u) ORDER BY v": [(10,), (20,)],
    "SELECT v FROM t WHERE k NOT IN (SELECT k FROM u) ORDER BY v": [(30,)],
    "SELECT v FROM t WHERE k NOT IN (SELECT k FROM nulls)": [],
    "SELECT v FROM t WHERE k NOT IN (SELECT k FROM empty) ORDER BY v": [(10,), (20,), (30,), (40,)],
    "SELECT v FROM t WHERE (k, v) IN (SELECT k, 10 FROM u)": [(10,)],
    "SELECT v FROM t WHERE (k, v) NOT IN (SELECT k, 10 FROM nulls) ORDER BY v": [
        (20,),
        (30,),
        (40,),
    ],
    "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND w <> 'a')": [(10,), (20,)],
    "SELECT v FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k) ORDER BY v": [(30,), (40,)],
    "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k < t.k) ORDER BY v": [(20,), (30,)],
    "SELECT v FROM t WHERE v > (SELECT avg(v) FROM t) ORDER BY v": [(30,), (40,)],
    "SELECT v, (SELECT count(*) FROM u WHERE u.k = t.k) AS n FROM t ORDER BY v": [
        (10, 2),
        (20, 1),
        (30, 0),
        (40, 0),
    ],
    "SELECT v, (SELECT max(w) FROM u WHERE u.k = t.k) AS n FROM t ORDER BY v": [
        (10, "b"),
        (20, "c"),
        (30, None),
        (40, None),
    ],
    "SELECT v FROM t WHERE v = 40 OR EXISTS (SELECT 1 FROM u WHERE u.k = t.k) ORDER BY v": [
        (10,),
        (20,),
        (40,),
    ],
    "SELECT v, k IN (SELECT k FROM nulls) AS i FROM t ORDER BY v": [
        (10, True),
        (20, False),
        (30, False),
        (40, False),
    ],
    "SELECT k FROM u GROUP BY k HAVING count(*) = (SELECT max(k) - 1 FROM t) ORDER BY k": [(1,)],
    "SELECT v FROM t WHERE k = (SELECT k FROM u WHERE w = 'c')": [(20,)],
}
GENERATORS = {
    "SELECT id, x FROM lists LATERAL VIEW explode(xs) v AS x": [(1, 5), (1, None)],
    "SELECT id, v.x FROM lists LATERAL VIEW OUTER explode(xs) v AS x ORDER BY id, x DESC": [
        (1, 5),
        (1, None),
        (2, None),
        (3, None),
    ],
    "SELECT id, posexplode(xs) FROM lists": [(1, 0, 5), (1, 1, None)],
    "SELECT posexplode_outer(xs) AS (n, x) FROM lists WHERE id < 3": [
        (0, 5),
        (1, None),
        (None, None),
    ],
    "SELECT id, key, value FROM lists LATERAL VIEW explode(m)": [(1, "a", 1)],
    "SELECT id, inline(s) FROM lists": [(1, 1, "x"), (1, None, None)],
    "SELECT count(*) FROM lists LATERAL VIEW explode(xs) a LATERAL VIEW explode(xs) b": [(4,)],
}
SETS = {
    "SELECT k, w, count(*) FROM u WHERE k < 3 GROUP BY ROLLUP (k, w) ORDER BY 1, 2": [
        (None, None, 3),
        (1, None, 2),
        (1, "a", 1),
        (1, "b", 1),
        (2, None, 1),
        (2, "c", 1),
    ],
    "SELECT k, grouping(k) AS g, grouping_id(k, w) AS i FROM u WHERE k = 2 GROUP BY CUBE (k, w)"
    " ORDER BY i": [(2, 0, 0), (2, 0, 1), (None, 1, 2), (None, 1, 3)],
    "SELECT k, count(w) AS n FROM u GROUP BY GROUPING SETS ((k), (), ()) ORDER BY k, n": [
        (None, 3),
        (None, 3),
        (1, 2),
        (2, 1),
        (5, 0),
    ],
}


@pytest.mark.parametrize("text", [*ROWS, *SUBQUERIES, *SETS, *GENERATORS])
def test_a_statement_gives_these_rows(text: str) -> None:
    answers = ROWS | SUBQUERIES | SETS | GENERATORS
    assert rows_of(TABLES, text) == answers[text]


def test_tables_are_joined_by_the_conditions_between_them_and_not_crossed() -> None:
    text = "SELECT 1 FROM t, nulls n, u WHERE (t.k = u.k AND v = 1 OR u.k = t.k AND v = 2) OR 1 = 2"
    relation = sql_relation(TABLES, "SELECT * FROM t, nulls n, u WHERE t.k = u.k AND u.k = n.k")
    assert [join.how for join in _joins(relation.node)] == ["inner", "inner"]
    assert relation.labels == ["k", "v", "k", "k", "w"]
    common = "SELECT 1 FROM t, u WHERE (t.k = u.k AND v = 1) OR (t.k = u.k AND v = 2)"
    assert [join.how for join in _joins(sql_relation(TABLES, common).node)] == ["inner"]
    assert "cross" in [join.how for join in _joins(sql_relation(TABLES, text).node)]


def test_a_table_of_with_is_built_once() -> None:
    relation = sql_relation(
        TABLES, "WITH c AS (SELECT k, count(*) AS n FROM u GROUP BY k) SELECT 1 FROM c a, c b"
    )
    leaves = [node for node in _nodes(relation.node) if not node.children]
    assert len({id(node) for node in leaves}) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT nothing FROM t", "no column nothing"),
        ("SELECT k FROM t, u WHERE t.k = u.k", "k is ambiguous"),
        ("SELECT k FROM nowhere", "no table nowhere"),
        ("SELECT k FROM t UNION ALL SELECT k, w FROM u", "different numbers of columns"),
        ("SELECT v FROM t ORDER BY 2", "ORDER BY 2 names no column"),
        ("SELECT k, v FROM t GROUP BY k", "v is neither a key nor in an aggregate"),
        ("SELECT v FROM t WHERE k IN (SELECT k, w FROM u)", "a subquery of 2 columns"),
    ],
)
def test_what_is_wrong_for_spark_too_is_refused(text: str, said: str) -> None:
    with pytest.raises(ExpressionRefused, match=said) as raised:
        sql_relation(TABLES, text)
    assert not isinstance(raised.value, NotNative)


def test_a_query_without_a_native_form_goes_to_spark_over_its_tables() -> None:
    asked: list[tuple[list[str], object]] = []

    def on_spark(inputs: object, sql: object, reason: str) -> Node:
        assert reason
        assert isinstance(inputs, list)
        asked.append(([name for name, _ in inputs], sql))
        return FrameScan(object(), pa.schema({"a": pa.int64()}), None, ("a",))

    context = context_of(TABLES)
    inner = "SELECT k AS a FROM t LATERAL VIEW json_tuple('{}', 'b') j"
    tree = read(f"SELECT max(a) AS m FROM ({inner}) s")
    relation = statement_relation(type(context)(catalog=context.catalog, on_spark=on_spark), tree)
    assert relation.labels == ["m"]
    on_view = "SELECT k AS a FROM input_0 AS `t` LATERAL VIEW JSON_TUPLE('{}', 'b') j"
    assert asked == [(["input_0"], on_view)]


def test_parameters_become_literals() -> None:
    by_name = with_arguments(read("SELECT :a + :b"), {"a": 1, "b": -2.5})
    assert canonical(by_name) == "SELECT 1 + -2.5D"
    by_position = with_arguments(
        read("SELECT ? FROM t WHERE a = ? AND b = ?"), ["x", None, 1 << 40]
    )
    assert canonical(by_position) == "SELECT 'x' FROM t WHERE a = NULL AND b = 1099511627776L"
    with pytest.raises(ExpressionRefused, match=":b has no value"):
        with_arguments(read("SELECT :b"), {"a": 1})


def _nodes(node: Node) -> list[Node]:
    return [node, *(below for child in node.children for below in _nodes(child))]


def _joins(node: Node) -> list[Join]:
    return [node for node in _nodes(node) if isinstance(node, Join)]
