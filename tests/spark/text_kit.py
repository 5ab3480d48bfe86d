"""A table of difficult texts, numbers and bytes, and the comparison of expressions with Spark."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from millrace.engine.function_install import install_functions
from millrace.sql.expressions import parse
from millrace.sql.types import to_arrow

CASES: Final = Path(__file__).parent / "text_cases.txt"
I32, I64 = 2**31, 2**63
NAN, INF = float("nan"), float("inf")
GREEK: Final = "\u1f48\u0394\u03a5\u03a3\u03a3\u0395\u038e\u03a3 \u03a3 \u0391\u03a3\u0391"
TEXTS: Final = [
    *(None, "", " ", "a", "hello", "Hello World", "AbC-12 xY", "straße", GREEK, "éa\u0301e\u0301"),
    *("😀x😀", "\ufb01x\ufb03 \u01c6", "İ\u0131\u017fK", "a,b,,c", "aaaa", "aXbXcX", "1-2-3"),
    *("٣٤", "12", "4111111111111111", "tab\tnl\nend\n", "crlf\r\n", "nel\u0085", "ls\u2028x"),
    *("  pad  ", "\x00\x01nul\x7f", "q'uo\"te\\", "100%_x", "a+b c%20%C3%A9", "YWJj\nZA==", "ff0"),
    *("xyz" * 700, "Robert", "Rupert", "Tymczak", "Pfister", "key=val;k2=v2"),
    *("user@mail.example.org", "\r", "\u0301"),
]
NUMBERS: Final = [
    *("12", " 7 ", "\x00-3\x1f", "+0", "007", None, "9\t\n", "\x7f5\x7f", "-128", "127"),
]
DECIMALS: Final = [
    *("1.5", " -3e2 ", "\x00+.5", "5.", "٣.٤", None, "1e-9", "12345678.905"),
    *("-0.005", "0e99999", "1E3", "९", "00000000000000000000000000000000000000000000001"),
]
DOUBLES: Final = [
    *("1.5d", "1f", " 2.5D\n", "NaN", "-NaN", "nan", "Infinity", "-infinity", "+inf", "INF", None),
    *("0x1p3", "-0X1.8p1d", "1e400", "-1e99999", "1e-99999", ".5", "5.", "\x00-0.0", "4.9e-324"),
]
WORDS: Final = ["true", "F", " yes ", "\x000\x7f", "N", None, "1", "t", "NO", "y", "FALSE"]
OTHERS: Final = [
    *(
        "a",
        "",
        "l",
        "o W",
        "b",
        None,
        "ß",
        "\u03a3",
        "e\u0301",
        "x",
        "aa",
        ",",
        "X",
        "-",
        "\n",
        " ",
    ),
]
COUNTS: Final = [0, 1, 2, 3, -1, -2, 5, None, 100, -100, 7, 33, -I32, 20, 4, 6]
LONGS: Final = [0, 1, -1, 255, 256, 65, 1000, None, I64 - 1, -I64, 233, -5, 128, 97, 8364, 64]
INTS: Final = [0, 1, -1, 255, I32 - 1, -I32, 1000, None, 97, -97, 31, 32, 63, 64, 5, 12345]
BYTES: Final = [b"abc", b"", None, b"\xc3\xa9", b"\x00\x01", b"\xff\xfe", b"a" * 100, b"\x80", b"A"]
ROWS: Final = len(TEXTS)


def _cycled(values: list[object]) -> list[object]:
    return [values[number % len(values)] for number in range(ROWS)]


TABLE: Final = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int32()),
        "s": pa.array(TEXTS),
        "t": pa.array(_cycled(list(OTHERS))),
        "u": pa.array([*TEXTS[7:], *TEXTS[:7]]),
        "n": pa.array(_cycled(list(COUNTS)), pa.int32()),
        "l": pa.array(_cycled(list(LONGS)), pa.int64()),
        "i": pa.array(_cycled(list(INTS)), pa.int32()),
        "y": pa.array(_cycled([0, 1, -1, 127, -128, None, 5]), pa.int8()),
        "h": pa.array(_cycled([0, 1, -1, 32767, -32768, None, 300]), pa.int16()),
        "p": pa.array(_cycled([True, False, None])),
        "x": pa.array(_cycled([0.0, -0.0, 1.5, -2.25, NAN, INF, -INF, None, 1e300, 0.125])),
        "f": pa.array(_cycled([0.0, -0.0, 1.5, NAN, INF, None, 3e38]), pa.float32()),
        "d": pa.array(
            _cycled([Decimal("1.50"), Decimal("-2.55"), None, Decimal("0.00")]),
            pa.decimal128(10, 2),
        ),
        "g": pa.array(
            _cycled([Decimal("12345678901234567890.12"), Decimal("-1.00"), None, Decimal("0.05")]),
            pa.decimal128(30, 2),
        ),
        "da": pa.array(_cycled([0, -1, 18321, None]), pa.int32()).cast(pa.date32()),
        "ts": pa.array(_cycled([0, -1, 1_600_000_000_123_456, None]), pa.timestamp("us", "UTC")),
        "nt": pa.array(_cycled(list(NUMBERS))),
        "dt": pa.array(_cycled(list(DECIMALS))),
        "ft": pa.array(_cycled(list(DOUBLES))),
        "wt": pa.array(_cycled(list(WORDS))),
        "bi": pa.array(_cycled(list(BYTES)), pa.binary()),
    }
)


def listed(section: str) -> list[str]:
    """The cases of a section of the file, one on each line."""
    parts = re.split(r"^\[(\w+)\]\n", CASES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [line for line in blocks[section].splitlines() if line.strip()]


def connection() -> duckdb.DuckDBPyConnection:
    """The engine with the table."""
    database = duckdb.connect()
    install_functions(database)
    database.execute("SET TimeZone = 'UTC'")
    database.register("t", TABLE)
    return database


def evaluated(database: duckdb.DuckDBPyConnection, case: str) -> pa.ChunkedArray:
    """The engine's values of an expression, row by row."""
    expression = parse(case, TABLE.schema, call=case)
    column = database.sql(f"SELECT {expression.sql} FROM t ORDER BY id").to_arrow_table().column(0)
    kind = to_arrow(expression.type)
    return pa.chunked_array([pa.nulls(ROWS)]) if pa.types.is_null(kind) else column.cast(kind)


def difference(case: str, mine: pa.ChunkedArray, theirs: pa.ChunkedArray) -> str | None:
    """What differs, with the first texts of the rows; None if nothing does."""
    if mine.type != theirs.type:
        return f"{case}: type {mine.type}, Spark {theirs.type}"
    triples = zip(range(ROWS), mine.to_pylist(), theirs.to_pylist(), strict=True)
    wrong = [(number, m, s) for number, m, s in triples if not same(m, s)]
    return f"{case}: (row, ours, Spark's) {wrong[:4]}" if wrong else None


def same(mine: object, spark: object) -> bool:
    """Whether two values are the same; a NaN equals a NaN."""
    if isinstance(mine, float) and isinstance(spark, float) and math.isnan(mine):
        return math.isnan(spark)
    return bool(mine == spark)
