"""Equal parts of a query are made once: one stage, or one step of a query, that several read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.plan.test_stages import BROADCAST, CUT_UP, SMALL, scan
from tests.unit.runner_kit import NoRunner
from tests.unit.statement_kit import sql_relation

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.engine.stage_work import QueryWork, work_of
from millrace.plan.nodes.node import Node
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.adaptive_stages import AdaptiveStages, adaptable_joins
from millrace.plan.planner.exchanges import SEVERAL_READERS, PlanLimits
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import Stage, plan_stages
from millrace.plan.relation import relation_of

QUERY_4 = Path(__file__).with_name("tpcds_query_4.sql").read_text(encoding="utf-8")
SALES = {"store_sales": "ss", "catalog_sales": "cs", "web_sales": "ws"}
CUSTOMER_TEXTS = (
    *("c_customer_id", "c_first_name", "c_last_name", "c_preferred_cust_flag"),
    *("c_birth_country", "c_login", "c_email_address"),
)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Node]:
    """The tables of query 4, with few rows."""
    money = pa.array([Decimal("1.50")] * 8, pa.decimal128(7, 2))
    keys = pa.array(range(8), pa.int32())
    made = {
        "customer": {"c_customer_sk": keys} | {name: ["x"] * 8 for name in CUSTOMER_TEXTS},
        "date_dim": {"d_date_sk": keys, "d_year": keys},
    }
    for name, prefix in SALES.items():
        buyer = "customer_sk" if prefix == "ss" else "bill_customer_sk"
        prices = ("list_price", "wholesale_cost", "discount_amt", "sales_price")
        made[name] = {
            f"{prefix}_{buyer}": keys,
            f"{prefix}_sold_date_sk": keys,
        } | {f"{prefix}_ext_{price}": money for price in prices}
    for name, columns in made.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    return {name: scan(tmp_path / f"{name}.parquet")._plan for name in made}


def planned(tables: Mapping[str, Node], text: str, sizes: PlanLimits = CUT_UP) -> list[Stage]:
    return plan_stages(sql_relation(tables, text).output(), sizes)


def scans(stages: list[Stage]) -> int:
    return sum(isinstance(leaf, Scan) for stage in stages for leaf in stage.leaves)


@pytest.mark.parametrize(
    ("sizes", "scans_expected", "stages_expected"), [(CUT_UP, 5, 20), (BROADCAST, 7, 15)]
)
def test_query_4_of_tpcds_makes_its_table_of_with_once(
    tables: dict[str, Node], sizes: PlanLimits, scans_expected: int, stages_expected: int
) -> None:
    stages = planned(tables, QUERY_4, sizes)

    assert (scans(stages), len(stages)) == (scans_expected, stages_expected)
    (shared,) = [stage for stage in stages if stage.why == SEVERAL_READERS]
    assert sum(stage.reads.count(shared.number) for stage in stages) == 6
    assert "filter (d_year = 2001) OR (d_year = 2002)" in explain(stages), "some reader's filter"


def test_in_one_task_the_table_is_one_step_of_the_query(tables: dict[str, Node]) -> None:
    (stage,) = planned(tables, QUERY_4, SMALL)

    work = work_of(stage.root, time_zone="UTC", config=Config())

    assert isinstance(work, QueryWork)
    assert scans([stage]) == len(work.below) == 9
    assert work.sql.count("MATERIALIZED") == 1
    shown = explain([stage])
    assert shown.count("shared rows 0, made once") == 6
    assert shown.count("scan parquet") == 9


TOTALS = """WITH t AS
    (SELECT d_year AS y, count(*) AS n, max(d_date_sk) AS m FROM date_dim GROUP BY 1) """


def test_readers_get_the_columns_and_rows_that_any_of_them_wants(tables: dict[str, Node]) -> None:
    text = TOTALS + "SELECT a.n FROM t a, t b WHERE a.y = b.n AND a.y > 3 AND b.y < 2"

    shown = explain(planned(tables, text, SMALL))

    assert "max" not in shown.lower().replace("max(d_date_sk)", ""), "no reader wants it"
    assert "filter (d_year < 2) OR (d_year > 3)" in shown or (
        "filter (d_year > 3) OR (d_year < 2)" in shown
    )


def test_a_reader_without_a_filter_gets_all_rows(tables: dict[str, Node]) -> None:
    text = TOTALS + "SELECT a.n FROM t a, t b WHERE a.y = b.n AND a.y > 3"

    stages = planned(tables, text, SMALL)

    assert "filter d_year" not in explain(stages)
    assert scans(stages) == 1


def test_a_join_is_not_shared_by_readers_that_filter_differently(tables: dict[str, Node]) -> None:
    joined = """WITH j AS (SELECT * FROM store_sales JOIN date_dim ON ss_sold_date_sk = d_date_sk)
        SELECT DISTINCT ss_ext_sales_price FROM j WHERE d_year = {} UNION ALL
        SELECT DISTINCT ss_ext_list_price FROM j WHERE d_year = {}"""

    differently = planned(tables, joined.format(1, 2), SMALL)
    alike = planned(tables, joined.format(1, 1), SMALL)

    assert (scans(differently), scans(alike)) == (4, 2)
    assert "filter d_year = 2" in explain(differently)


def test_equal_exchanges_are_one_stage_that_does_not_move_while_others_read_it(
    tables: dict[str, Node],
) -> None:
    text = """SELECT d_year, max(ss_customer_sk) FROM date_dim
        JOIN store_sales ON d_date_sk = ss_sold_date_sk AND ss_ext_list_price > 1 GROUP BY d_year
        UNION ALL SELECT d_year, max(cs_bill_customer_sk) FROM date_dim
        JOIN catalog_sales ON d_date_sk = cs_sold_date_sk AND cs_ext_list_price > 1
        GROUP BY d_year"""

    stages = planned(tables, text)

    (dates,) = [s for s in stages if "d_year" in s.root.schema.names and s.root.children == ()]
    readers = [stage.number for stage in stages if dates.number in stage.reads]
    assert len(readers) == 2
    assert dates.number not in [join.large for join in adaptable_joins(stages)]
    course = AdaptiveStages(stages, broadcast_bytes_max=1 << 30, together_bytes_max=1)
    measured: dict[int, int] = {}
    for stage in stages:
        if course.stage(stage.number, measured) is not None:
            measured[stage.number] = 100
    assert dates.number in measured, "it has other readers"


def test_rows_of_a_function_are_shared_only_if_it_is_recognised(tables: dict[str, Node]) -> None:
    rows = Dataset(relation_of(tables["date_dim"]), NoRunner())
    unknown = open(__file__, encoding="utf-8")  # noqa: SIM115 - a value without an identity

    def known(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def strange(batch: pa.RecordBatch) -> pa.RecordBatch:
        unknown.tell()
        return batch

    def twice(function: Callable[[pa.RecordBatch], pa.RecordBatch]) -> list[Stage]:
        made = rows.map_batches(function, schema=tables["date_dim"].schema)
        both = made.filter("d_year > 1").union(made.filter("d_year < 1"))
        return plan_stages(both._plan, CUT_UP)

    with unknown:
        assert (scans(twice(known)), scans(twice(strange))) == (1, 2)


def test_shared_rows_that_a_function_gets_are_saved_even_in_one_task(
    tables: dict[str, Node],
) -> None:
    rows = Dataset(relation_of(tables["date_dim"]), NoRunner()).group_by("d_year").agg(n="count(*)")
    made = rows.map_batches(lambda batch: batch, schema=rows._plan.schema)

    stages = plan_stages(rows.join(made, on="d_year")._plan, SMALL)

    assert [stage.why for stage in stages] == [SEVERAL_READERS, "the result"]
    assert stages[1].reads == (0, 0)


@pytest.mark.parametrize(
    ("one", "other", "scans_expected"),
    [
        ("max(d_year)", "min(d_date_sk)", 1),
        ("max(d_year) FROM date_dim WHERE d_year > 1", "min(d_year)", 2),
        ("max(d_year)", "min(d_year) FROM date_dim WHERE d_year > 1", 2),
        (
            "max(d_date_sk) FROM date_dim WHERE d_year > 1",
            "count(*) + 1 FROM date_dim WHERE d_year < 3",
            1,
        ),
        (
            "max(d_date_sk) FROM date_dim WHERE d_year > 1",
            "count(*) FROM date_dim WHERE d_date_sk < 3",
            2,
        ),
        (
            "max(d_date_sk) FROM date_dim WHERE d_year > 1",
            "max(d_year + 1) FROM date_dim WHERE d_year < 3",
            2,
        ),
        (
            "max(d_date_sk) FROM date_dim WHERE d_year > 1",
            "max(d_year) FROM date_dim WHERE d_year + 1 < 3",
            2,
        ),
    ],
)
def test_aggregates_of_one_row_read_their_rows_once(
    tables: dict[str, Node], one: str, other: str, scans_expected: int
) -> None:
    """Not if their filters are about other columns, nor if a row of others could fail in one."""
    sides = [text if "FROM" in text else f"{text} FROM date_dim" for text in (one, other)]

    stages = planned(tables, f"SELECT (SELECT {sides[0]}) AS a, (SELECT {sides[1]}) AS b", SMALL)

    assert scans(stages) == scans_expected
