"""Plans of as-of and interval joins: where rows meet, what is read, what is refused."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.runner_kit import NoRunner

from millrace.config import Config
from millrace.datasets.dataset import Dataset
from millrace.durations import ms
from millrace.errors import UserError
from millrace.plan.nodes.scan import Scan
from millrace.plan.planner.exchanges import PlanLimits, scanned_bytes
from millrace.plan.planner.stage_pictures import explain
from millrace.plan.planner.stages import plan_stages
from millrace.plan.relation import relation_of
from millrace.scan.source import Listing, open_source
from millrace.sql.functions.dates import Span
from millrace.sql.ordered_offsets import OffsetArgument, is_above, is_negative, read_offset, width
from millrace.sql.types import DATE, DOUBLE, INT, LONG, TIMESTAMP, TIMESTAMP_NTZ, SqlType, decimal

CUT_UP = PlanLimits(
    one_task_bytes_max=1, broadcast_bytes_max=1, partition_bytes_target=100, partitions_max=4
)
BROADCAST = PlanLimits(
    one_task_bytes_max=1, broadcast_bytes_max=1 << 30, partition_bytes_target=100, partitions_max=4
)
DAY = 86_400_000_000


def scan(path: Path, **columns: pa.Array | list[Any]) -> Dataset:
    pq.write_table(pa.table(columns), path)
    source = open_source(str(path), Listing(now_ms=0, recent_ms=ms(Config().recent_change)))
    return Dataset(relation_of(Scan(source, tuple(source.schema.names))), NoRunner())


@pytest.fixture
def trades(tmp_path: Path) -> Dataset:
    times = pa.array(range(100), pa.timestamp("us"))
    return scan(
        tmp_path / "t.parquet", sym=["a"] * 100, at=times, n=list(range(100)), w=[1.5] * 100
    )


@pytest.fixture
def quotes(tmp_path: Path) -> Dataset:
    times = pa.array(range(100), pa.timestamp("us"))
    return scan(
        tmp_path / "q.parquet", sym=["a"] * 100, at=times, n=list(range(100)), bid=[1] * 100
    )


def stages(dataset: Dataset, sizes: PlanLimits = CUT_UP) -> list[str]:
    return explain(plan_stages(dataset._plan, sizes)).splitlines()


def test_rows_meet_by_their_keys_and_bring_what_is_wanted(trades: Dataset, quotes: Dataset) -> None:
    query = trades.join_asof(quotes, on="at", by="sym", tolerance="10 seconds").select("w", "bid")

    assert stages(query) == [
        "stage 0 -> hash(sym) into 4: rows with equal keys must meet",
        "  scan parquet, 1 file, columns sym, at, w",
        "stage 1 -> hash(sym) into 4: rows with equal keys must meet",
        "  scan parquet, 1 file, columns sym, at, bid",
        "stage 2 -> the result",
        "  project w, bid",
        "    left as-of join backward on at by sym = sym within 10 seconds",
        "      read stage 0",
        "      read stage 1",
    ]


def test_an_interval_join_says_what_it_joins(trades: Dataset, quotes: Dataset) -> None:
    query = trades.join_interval(
        quotes, left_on="n", right_on="bid", lower=-5, upper=10, left_by="sym", right_by="sym"
    )

    assert "  inner interval join of bid from n + (-5) to + (10) by sym = sym" in stages(query)


def test_without_keys_all_rows_meet_in_one_task(trades: Dataset, quotes: Dataset) -> None:
    lines = stages(trades.join_asof(quotes, on="at", direction="nearest"))

    assert [line for line in lines if line.startswith("stage")] == [
        "stage 0 -> gather: all rows must meet",
        "stage 1 -> gather: all rows must meet",
        "stage 2 -> the result",
    ]


def test_a_small_right_side_is_read_whole_and_a_left_one_only_if_no_row_of_it_is_kept(
    trades: Dataset, quotes: Dataset
) -> None:
    bounds: dict[str, Any] = {"left_on": "n", "right_on": "n", "lower": 0, "upper": 1}
    small = PlanLimits(
        one_task_bytes_max=1,
        broadcast_bytes_max=scanned_bytes(quotes._plan),
        partition_bytes_target=100,
        partitions_max=4,
    )
    large = trades.union(*([trades] * 50))

    asof = stages(trades.join_asof(quotes, on="at", by="sym", how="inner"), BROADCAST)
    keyless = stages(trades.join_asof(quotes, on="at"), BROADCAST)
    inner = stages(quotes.join_interval(large, by="sym", **bounds), small)
    left = stages(quotes.join_interval(large, by="sym", how="left", **bounds), small)
    back = stages(quotes.join_asof(large, on="n", by="sym", how="inner"), small)

    assert asof[0] == keyless[0] == "stage 0 -> broadcast: the right side is small"
    assert inner[0] == "stage 0 -> broadcast: the left side is small"
    assert not any("broadcast" in line for line in [*left, *back])


def test_rows_lie_by_the_key_afterwards(trades: Dataset, quotes: Dataset) -> None:
    joined = trades.join_asof(quotes, on="at", by="sym")

    lines = stages(joined.group_by("sym").agg(total="sum(bid)"))

    assert sum(line.startswith("stage") for line in lines) == 3


def test_filters_pass_where_they_change_no_match(trades: Dataset, quotes: Dataset) -> None:
    joined = trades.join_asof(quotes, on="at", by="sym")
    near = trades.join_interval(quotes, left_on="at", right_on="at", lower="0 days", upper="1 day")

    on_left, on_key = stages(joined.filter("w > 1")), stages(joined.filter("sym = 'a'"))
    on_right = stages(joined.filter("bid > 1"))
    on_near = stages(near.filter("bid > 1"))

    assert "  filter w > 1" in on_left
    assert on_key.count("  filter sym = 'a'") == 2
    assert on_right[-4] == "  filter bid > 1"
    assert on_near[3:5] == ["  filter bid > 1", "    scan parquet, 1 file, columns sym, at, n, bid"]
    assert on_near[-3].startswith("  inner interval join")


def test_columns_of_both_sides_have_names_of_their_own(trades: Dataset, quotes: Dataset) -> None:
    merged = trades.join_asof(quotes, on="at", by="sym")
    apart = trades.join_asof(quotes, left_on="n", right_on="bid", left_by="sym", right_by="sym")

    assert merged.columns == ["sym", "at", "n", "w", "at_right", "n_right", "bid"]
    assert apart.columns == ["sym", "at", "n", "w", "sym_right", "at_right", "n_right", "bid"]
    assert merged.arrow_schema.field("at_right").type == pa.timestamp("us")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on": "att"}, r"no column 'att', in join_asof"),
        ({}, r"needs one column of numbers or times on each side\n  found: \[\] and \[\]"),
        ({"on": ["at", "n"]}, r"found: \['at', 'n'\] and \['at', 'n'\]"),
        ({"left_on": "at"}, r"found: \['at'\] and \[\]"),
        ({"on": "at", "left_on": "at"}, "has on= and left_on= or right_on="),
        ({"left_on": "at", "right_on": "n"}, "'at' is timestamp_ntz, 'n' is bigint"),
        ({"on": "sym"}, r"values that have no distance\n  found: 'sym' is string"),
        ({"on": "at", "by": "symbol"}, r"no column 'symbol', in join_asof"),
        ({"on": "at", "by": "sym", "left_by": "n"}, "has by= and left_by= or right_by="),
        ({"on": "at", "left_by": ["sym", "n"], "right_by": "sym"}, "left_by= and right_by= of the"),
        ({"on": "at", "left_by": "w", "right_by": "sym"}, "keys of different types"),
        ({"on": "at", "direction": "back"}, "use one of backward, forward, nearest"),
        ({"on": "at", "how": "full"}, r"found: 'full'\n  to fix: use inner or left"),
        ({"on": "at", "tolerance": 10}, r"no interval, for a timestamp_ntz\n  found: 10"),
        ({"on": "at", "tolerance": "10"}, r"is no interval\n  found: '10'\n  to fix: write num"),
        ({"on": "at", "tolerance": "-1 second"}, "tolerance is negative"),
        ({"on": "n", "tolerance": -1}, r"tolerance is negative\n  found: -1"),
        ({"on": "n", "tolerance": "10 seconds"}, r"is no number, for a bigint"),
        ({"on": "n", "tolerance": True}, "is no number"),
        ({"on": "n", "tolerance": float("nan")}, "has no end"),
        ({"on": "n", "tolerance": 1 << 63}, "does not fit bigint"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    trades: Dataset, quotes: Dataset, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        trades.join_asof(quotes, **given)


@pytest.mark.parametrize(
    ("column", "lower", "upper", "said"),
    [
        ("n", 1, 0, r"nothing lies between lower and upper\n  found: 1 and 0 for a bigint"),
        ("n", 0.2, 0.8, "nothing lies between"),
        ("at", "1 hour", "59 minutes", "nothing lies between"),
        ("at", "1 month", "27 days", "nothing lies between"),
        ("at", "2 months", "1 year -11 months", "nothing lies between"),
        ("at", 0, "1 hour", "lower is no interval"),
        ("n", 0, "1 hour", "upper is no number"),
    ],
)
def test_bounds_between_which_nothing_lies_are_refused(
    trades: Dataset,
    quotes: Dataset,
    column: str,
    lower: float | str,
    upper: float | str,
    said: str,
) -> None:
    with pytest.raises(UserError, match=said):
        trades.join_interval(quotes, left_on=column, right_on=column, lower=lower, upper=upper)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("10 seconds", Span(micros=10_000_000)),
        ("INTERVAL '10' SECOND", Span(micros=10_000_000)),
        ("interval 1 day 2 hours", Span(days=1, micros=7_200_000_000)),
        ("-1.5 seconds", Span(micros=-1_500_000)),
        ("36 hours", Span(days=1, micros=DAY // 2)),
        ("-36 hours", Span(days=-1, micros=-DAY // 2)),
        ("2 years 1 month", Span(months=25)),
        ("1 week 3 milliseconds 4 microseconds", Span(days=7, micros=3004)),
        ("0 seconds", Span()),
    ],
)
def test_intervals_are_read_as_spark_writes_them(text: str, span: Span) -> None:
    assert read_offset(text, OffsetArgument("call", "tolerance", TIMESTAMP)) == span


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("1.5 hours", TIMESTAMP, "is no interval"),
        ("10 secs", TIMESTAMP, "units: year, month, week, day, hour"),
        ("ten seconds", TIMESTAMP, "is no interval"),
        ("", TIMESTAMP, "is no interval"),
        ("1 month 1 day", TIMESTAMP, "mixes months with days"),
        ("999999999999 days", TIMESTAMP_NTZ, "longer than Spark's"),
        ("2 hours", DATE, "less than dates can tell apart"),
    ],
)
def test_other_intervals_are_refused(text: str, line: SqlType, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_offset(text, OffsetArgument("call", "tolerance", line))


def test_numbers_are_made_to_fit_the_line() -> None:
    def fitted(given: Any, line: SqlType, *, least: bool = False) -> object:  # noqa: ANN401
        return read_offset(given, OffsetArgument("call", "bound", line, least=least))

    assert fitted(1.5, INT) == 1
    assert fitted(-1.5, INT) == -2
    assert fitted(1.5, LONG, least=True) == 2
    assert fitted(0.1, decimal(9, 2)) == Decimal("0.10")
    assert fitted(Decimal("-0.111"), decimal(9, 2), least=True) == Decimal("-0.11")
    assert fitted(3, DOUBLE) == 3.0
    assert fitted(np.int32(3), LONG) == 3
    assert fitted(np.float64(0.1), decimal(9, 1)) == Decimal("0.1")


def test_intervals_are_compared_only_as_far_as_they_can_be() -> None:
    month, days = Span(months=1), Span(days=29)

    assert not is_above(month, days)
    assert not is_above(days, month)
    assert is_above(Span(days=32), month)
    assert is_above(month, Span(days=27))
    assert is_negative(Span(months=-1))
    assert not is_negative(Span())
    assert width(Span(days=-1), Span(days=1), DATE) == 2
    assert width(Span(), month, DATE) == 31
    assert width(month, month, TIMESTAMP) == 0
    assert width(Span(micros=-5), Span(micros=5), TIMESTAMP) == 10
    assert width(Span(), Span(days=1), TIMESTAMP_NTZ) == DAY
    assert width(Span(), Span(days=1), TIMESTAMP) > DAY
