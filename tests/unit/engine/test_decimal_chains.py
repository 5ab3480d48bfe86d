"""Decimals calculated from decimals that can fail themselves, against Python's decimals."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext

import pyarrow as pa
import pytest
from tests.unit.engine.memory_kit import rows

from millrace.errors import TaskFailed
from millrace.sql.expressions import parse

NUMBERS = ["1234567890123456789012345678.1234567890", "-3.5", "0.0000000001", "9" * 28 + ".9", "0"]
TABLE = pa.table(
    {
        "a": pa.array([*map(Decimal, NUMBERS), None], pa.decimal128(38, 10)),
        "b": pa.array([Decimal("2.51")] * 6, pa.decimal128(38, 2)),
        "c": pa.array([Decimal("-1.25")] * 6, pa.decimal128(12, 2)),
    }
)


def rounded(value: Decimal, scale: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)


@pytest.mark.parametrize(
    ("text", "scales"),
    [("a / b / c", (8, 6)), ("a / c / b", (8, 6)), ("a / c * c", (8, 6))],
)
def test_each_step_is_exact_and_rounded_to_its_scale(text: str, scales: tuple[int, int]) -> None:
    table = rows(TABLE).select(f"{text} AS x").to_arrow()
    with localcontext() as context:
        context.prec = 100
        expected: list[Decimal | None] = []
        for row in TABLE.to_pylist():
            if row["a"] is None:
                expected.append(None)
                continue
            first, _, middle, sign, last = text.split()
            value = rounded(row[first] / row[middle], scales[0])
            value = value / row[last] if sign == "/" else value * row[last]
            expected.append(rounded(value, scales[1]))
    assert table["x"].type.scale == scales[1]
    assert table["x"].to_pylist() == expected


@pytest.mark.parametrize(
    ("precision", "scale", "by_precision", "by_scale"),
    [(7, 2, 1, 0), (10, 2, 3, 0), (4, 0, 7, 2), (17, 2, 9, 4), (30, 2, 3, 1), (20, 18, 8, 8)],
    ids=str,
)
def test_quotients_are_exact_whatever_the_digits(
    precision: int, scale: int, by_precision: int, by_scale: int
) -> None:
    most, most_by = 10**precision - 1, 10**by_precision - 1
    digits = [0, 1, -1, 5, -5, 15, most // 3, most - 1, most, -most]
    by = sorted({*range(1, 10), *(most_by // n for n in (1, 2, 3, 7)), -1, -3, -most_by} - {0})
    pairs = [(n, d) for n in digits for d in by if abs(d) <= most_by]
    kinds = pa.decimal128(precision, scale), pa.decimal128(by_precision, by_scale)
    with localcontext() as context:
        context.prec = 100
        n = pa.array([Decimal(n).scaleb(-scale) for n, _ in pairs], kinds[0])
        d = pa.array([Decimal(d).scaleb(-by_scale) for _, d in pairs], kinds[1])
    table = pa.table({"n": n, "d": d})

    quotients = rows(table).select("n / d AS x", "n / nullif(d, d) AS missing").to_arrow()

    kind = quotients["x"].type
    with localcontext() as context:
        context.prec = 100
        expected = [rounded(row["n"] / row["d"], kind.scale) for row in table.to_pylist()]
    assert kind.scale == max(6, scale + by_precision + 1)
    assert quotients["x"].to_pylist() == expected
    assert quotients["missing"].null_count == len(pairs)


def test_a_step_that_overflows_fails_by_its_name() -> None:
    with pytest.raises(TaskFailed, match="does not fit decimal"):
        rows(TABLE).select("a / b * a AS x").to_arrow()


def test_sums_are_multiplied_and_divided() -> None:
    shares = rows(TABLE).agg(x="100.00 * sum(c * (1 - c)) / sum(c * (1 - c))").to_arrow()
    assert shares["x"].to_pylist() == [Decimal(100)]


def test_sql_of_a_chain_grows_with_its_steps_and_not_with_their_product() -> None:
    def sql_chars(steps: int) -> int:
        text = "c * 1.0000" + " / (c + 2 * c)" * steps
        return len(parse(text, TABLE.schema, call="select").sql)

    assert sql_chars(8) < 3 * sql_chars(4)


def test_a_null_on_the_left_is_the_result_of_a_long_chain_that_fails_on_the_right() -> None:
    chain = "a / (c / (b - b) / c / b) AS x"
    missing = rows(TABLE).filter("a IS NULL").select(chain).to_arrow()
    assert missing["x"].to_pylist() == [None]
    with pytest.raises(TaskFailed, match="division by zero"):
        rows(TABLE).select(chain).to_arrow()
