"""Windows: how they are planned, what they read, and what is refused when they are written down."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.runner_kit import NoRunner

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.durations import ms
from millrace.engine.query_writer import query
from millrace.errors import MillraceError
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.exchanges import PlanLimits
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import plan_stages
from millrace.plan.relation import relation_of
from millrace.scan.source import Listing, open_source

CUT_UP = PlanLimits(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=1, partitions_max=4
)
ROWS = pa.table(
    {
        "k": ["a", "b", "a", "a", None, None],
        "v": pa.array([3, 1, 2, 2, 7, 8], pa.int32()),
        "day": pa.array([1, 1, 2, 2, 3, 3], pa.int32()).cast(pa.date32()),
        "note": ["one", "two", "three", "four", "five", "six"],
    }
)


@pytest.fixture
def rows(tmp_path: Path) -> Dataset:
    pq.write_table(ROWS, tmp_path / "rows.parquet")
    listing = Listing(now_ms=0, recent_ms=ms(Config().recent_change))
    source = open_source(str(tmp_path / "rows.parquet"), listing)
    return Dataset(relation_of(Scan(source, tuple(source.schema.names))), NoRunner())


def stages(dataset: Dataset) -> list[str]:
    return explain(plan_stages(dataset._plan, CUT_UP)).splitlines()


def answer(dataset: Dataset) -> pa.Table:
    """What one task gives."""
    connection = duckdb.connect(config={"threads": 1})
    connection.register("input_0", ROWS)
    found: pa.Table = connection.sql(query(dataset._plan)).to_arrow_table()
    return found.cast(dataset.arrow_schema)


def test_rows_of_a_window_meet_in_a_task_and_only_what_is_needed_is_read(rows: Dataset) -> None:
    windows = rows.window(partition_by="k", order_by="day DESC", n="row_number()", t="sum(v)")

    assert stages(windows.select("k", "n")) == [
        "stage 0 -> hash(k) into 4: rows with equal keys must meet",
        "  scan parquet, 1 file, columns k, day",
        "stage 1 -> the result",
        "  project k, n",
        "    window ROW_NUMBER() as n; by k; in order of day DESC",
        "      read stage 0",
    ]


def test_rows_that_lie_by_a_key_of_the_window_are_not_exchanged_again(rows: Dataset) -> None:
    grouped = rows.group_by("k", "day").agg(v="sum(v)")
    once = grouped.window(partition_by=["k", "day"], order_by="v", n="rank()")
    again = once.window(partition_by=["day", "k", "v"], n="count(*)")
    then = again.group_by("k", "day").agg(m="max(n)")
    other = once.window(partition_by="k", total="sum(v)")

    assert sum(line.startswith("stage") for line in stages(then)) == 2
    assert sum(line.startswith("stage") for line in stages(other)) == 3


def test_a_key_that_is_replaced_no_longer_says_how_rows_lie(rows: Dataset) -> None:
    windows = rows.window(partition_by="v", v="count(*)")

    assert windows.arrow_schema.field("v").type == pa.int64()
    assert sum(line.startswith("stage") for line in stages(windows)) == 2
    assert sum(line.startswith("stage") for line in stages(windows.group_by("v").agg())) == 3


def test_without_keys_all_rows_meet_in_one_task(rows: Dataset) -> None:
    assert stages(rows.window(order_by="v", n="rank()"))[0] == (
        "stage 0 -> gather: all rows must meet"
    )


def test_a_window_that_nobody_wants_is_left_out(rows: Dataset) -> None:
    windows = rows.window(partition_by="k", n="count(*)")

    assert stages(windows.select("note")) == [
        "stage 0 -> the result",
        "  project note",
        "    project note",
        "      scan parquet, 1 file, columns note",
    ]
    assert "window" not in "".join(stages(windows.agg(rows="count(*)")))


def test_a_filter_on_a_key_passes_a_window_and_one_on_what_it_adds_does_not(rows: Dataset) -> None:
    windows = rows.window(partition_by="k", order_by="v", n="rank()").filter("k = 'a' AND n = 1")
    replaced = rows.window(partition_by="k", k="count(*)").filter("k = 1")
    distinct = rows.drop_duplicates("k", "v").filter("v > 1 AND note = 'one'")

    first = stages(windows)
    assert first.index("  filter k = 'a'") < first.index("stage 1 -> the result")
    assert first.index("  filter n = 1") > first.index("stage 1 -> the result")
    assert stages(replaced)[-3:-1] == ["  filter k = 1", "    window COUNT(*) as k; by k"]
    assert stages(distinct)[1:5] == [
        "  first row for each k, v",
        "    filter v > 1",
        "      scan parquet, 1 file, columns k, v, day, note",
        "stage 1 -> the result",
    ]


def test_first_rows_are_found_before_the_exchange_and_after_it(rows: Dataset) -> None:
    assert stages(rows.drop_duplicates("k").select("v")) == [
        "stage 0 -> hash(k) into 4: rows with equal keys must meet",
        "  first row for each k",
        "    scan parquet, 1 file, columns k, v",
        "stage 1 -> the result",
        "  project v",
        "    first row for each k",
        "      read stage 0",
    ]
    lying = rows.group_by("k").agg(n="count(*)").drop_duplicates("k", "n")
    assert sum(line.startswith("stage") for line in stages(lying)) == 2


def test_equal_rows_of_the_order_stay_in_the_order_they_come_in(rows: Dataset) -> None:
    found = answer(
        rows.window(
            partition_by="k",
            order_by="day",
            n="row_number()",
            before="lag(note)",
            last="last_value(note)",
            two="nth_value(note, 2)",
            run="sum(v)",
        )
    )

    wanted = [
        {"note": "one", "n": 1, "before": None, "last": "one", "two": None, "run": 3},
        {"note": "two", "n": 1, "before": None, "last": "two", "two": None, "run": 1},
        {"note": "three", "n": 2, "before": "one", "last": "four", "two": "three", "run": 7},
        {"note": "four", "n": 3, "before": "three", "last": "four", "two": "three", "run": 7},
        {"note": "five", "n": 1, "before": None, "last": "six", "two": "six", "run": 15},
        {"note": "six", "n": 2, "before": "five", "last": "six", "two": "six", "run": 15},
    ]
    kept = found.select(list(wanted[0])).to_pylist()
    assert sorted(kept, key=str) == sorted(wanted, key=str)


def test_new_columns_take_the_place_of_old_ones_and_see_their_old_values(rows: Dataset) -> None:
    windows = rows.window(partition_by="k", order_by="v", v="sum(v)", twice="v + max(v)")

    found = answer(windows)

    assert found.column_names == ["k", "v", "day", "note", "twice"]
    assert found.schema.field("v").type == pa.int64()
    twice = {row["note"]: (row["v"], row["twice"]) for row in found.to_pylist()}
    assert twice == {
        "two": (1, 2),
        "three": (4, 4),
        "four": (4, 4),
        "one": (7, 6),
        "five": (7, 14),
        "six": (15, 16),
    }


def test_columns_named_like_helpers_are_left_alone(rows: Dataset) -> None:
    odd = rows.select("k", "v AS __row", "v AS __piece0", "v AS __order", "note AS __place")

    found = answer(odd.window(partition_by="k", order_by="__row + 1", n="row_number()"))

    assert found.column_names == ["k", "__row", "__piece0", "__order", "__place", "n"]
    assert sorted(found["n"].to_pylist()) == [1, 1, 1, 2, 2, 3]
    assert answer(odd.drop_duplicates("k")).num_rows == 3


@pytest.mark.parametrize(
    ("columns", "given", "said"),
    [
        ({}, {}, "window() has nothing to calculate"),
        ({"n": "row_number()"}, {}, "row_number needs an order"),
        ({"n": "lag(v)"}, {"partition_by": "k"}, "lag needs an order"),
        ({"n": "v + 1"}, {}, "there is no window function"),
        ({"n": "sum(v) AS s"}, {}, "a name has no place here"),
        ({"n": "sum(v) OVER (PARTITION BY k)"}, {}, "OVER has no place here"),
        ({"n": "sum(lag(v))"}, {"order_by": "v"}, "a window function inside of another"),
        ({"n": "lag(sum(v))"}, {"order_by": "v"}, "a window function inside of another"),
        ({"n": "count(DISTINCT v)"}, {}, "DISTINCT has no place in a window"),
        ({"n": "ntile(0)"}, {"order_by": "v"}, "ntile needs a number of at least 1"),
        ({"n": "lag(v, day)"}, {"order_by": "v"}, "lag needs a number that is written out"),
        ({"n": "lag(v, 1, day)"}, {"order_by": "v"}, "cannot be cast"),
        ({"n": "rank(v)"}, {"order_by": "v"}, "rank takes 0 arguments"),
        ({"n": "sum(v) IGNORE NULLS"}, {}, "sum does not take IGNORE NULLS"),
        ({"n": "first_value(v, 1)"}, {}, "first_value takes true or false"),
        ({"n": "sum(day)"}, {}, "sum needs a number"),
        ({"n": "median(v)"}, {"order_by": "v"}, "median takes no order"),
        ({"n": "rank() FILTER (WHERE v > 1)"}, {"order_by": "v"}, "rank takes no FILTER"),
        ({"n": "sum(vv)"}, {}, "there is no column vv"),
        ({"n": "sum(v)"}, {"partition_by": "kk"}, "no column 'kk'"),
        ({"n": "sum(v)"}, {"partition_by": ["k", "k"]}, "'k' is named twice"),
        ({"n": "sum(v)"}, {"order_by": "vv"}, "there is no column vv"),
    ],
)
def test_what_cannot_be_calculated_is_refused(
    rows: Dataset, columns: dict[str, str], given: dict[str, str], said: str
) -> None:
    with pytest.raises(MillraceError, match=said.replace("(", r"\(").replace(")", r"\)")):
        rows.window(**given, **columns)


@pytest.mark.parametrize(
    ("frame", "order", "said"),
    [
        ("ROWS", "v", "the frame cannot be read"),
        ("ROWS BETWEEN HERE AND CURRENT ROW", "v", "the bound of a frame cannot be read"),
        ("ROWS BETWEEN 1 PRECEDING", "v", "the frame cannot be read"),
        ("GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW", "v", "the frame cannot be read"),
        ("ROWS BETWEEN x PRECEDING AND CURRENT ROW", "v", "counted in whole numbers"),
        ("ROWS BETWEEN -1 PRECEDING AND CURRENT ROW", "v", "counted in whole numbers"),
        ("ROWS BETWEEN 2147483648 PRECEDING AND CURRENT ROW", "v", "counted in whole numbers"),
        ("ROWS BETWEEN 1 PRECEDING AND 2 PRECEDING", "v", "ends before it begins"),
        ("ROWS BETWEEN UNBOUNDED FOLLOWING AND CURRENT ROW", "v", "ends before it begins"),
        ("RANGE BETWEEN CURRENT ROW AND UNBOUNDED PRECEDING", "v", "ends before it begins"),
        ("RANGE BETWEEN 1 PRECEDING AND CURRENT ROW", None, "a RANGE needs an order"),
        ("RANGE BETWEEN 1 PRECEDING AND CURRENT ROW", ["v", "k"], "needs one column"),
        ("RANGE BETWEEN 1 PRECEDING AND CURRENT ROW", "note", "cannot be counted in string"),
        ("RANGE BETWEEN 0.5 PRECEDING AND CURRENT ROW", "v", "counted in whole numbers"),
        ("RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW", "v", "whole numbers"),
        ("RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW", "day", "days or months"),
        ("RANGE BETWEEN x PRECEDING AND CURRENT ROW", "day", "intervals of one unit"),
    ],
)
def test_frames_that_mean_nothing_are_refused(
    rows: Dataset, frame: str, order: str | None, said: str
) -> None:
    with pytest.raises(MillraceError, match=said):
        rows.window(order_by=order, frame=frame, n="sum(v)")


def test_a_day_and_some_hours_are_refused_where_days_differ_in_length(rows: Dataset) -> None:
    times = rows.select("v", "timestamp(day) AS at", "CAST(day AS timestamp_ntz) AS local")
    frame = "RANGE BETWEEN INTERVAL 30 HOURS PRECEDING AND CURRENT ROW"

    assert times.window(order_by="local", frame=frame, n="count(*)").columns[-1] == "n"
    with pytest.raises(MillraceError, match="a whole number of days"):
        times.window(order_by="at", frame=frame, n="count(*)")


def test_a_frame_may_be_written_short_and_in_any_case(rows: Dataset) -> None:
    short = rows.window(order_by="v", frame=" rows  1 preceding ", n="sum(v)")
    long = rows.window(order_by="v", frame="ROWS BETWEEN 1 PRECEDING AND CURRENT ROW", n="sum(v)")

    assert stages(short) == stages(long)
