"""A table of nested columns with nulls, empty values and nulls inside, and the cases over it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

CASES = Path(__file__).parent / "nested_cases.txt"
NAN, INF = float("nan"), float("inf")
_AT = dt.datetime(2020, 2, 29, 10, 11, 12, 500000, tzinfo=dt.UTC)
_DAYS = [dt.date(2020, 2, 29), None, dt.date(1969, 12, 31), dt.date(2020, 2, 29)]
_PAIR = pa.struct({"k": pa.int32(), "v": pa.string()})
_DEEP = pa.struct({"d": pa.float64(), "e": pa.list_(pa.int32())})

NESTED = pa.table(
    {
        "id": pa.array(range(8), pa.int32()),
        "i": pa.array([1, 2, -1, None, 3, 0, 5, 2], pa.int32()),
        "l": pa.array([3, 2, None, 1, 8, 4, 7, 2**62], pa.int64()),
        "x": pa.array([0.0, -0.0, NAN, INF, None, 0.5, -1.5, 2.0]),
        "s": pa.array(["a", "b", ",", None, "a,b", "", "é😀.", "b,"]),
        "d": pa.array(
            list(map(Decimal, ["1.50", "-2.00", "7.25", "0.00", "3.10", "9.99", "1.50", "-0.05"])),
            pa.decimal128(6, 2),
        ),
        "dd": pa.array([*_DAYS, *_DAYS], pa.date32()),
        "ai": pa.array(
            [[1, 2, 3], [], [None], [3, None, 1, 3], None, [2147483647, -5], [2, None], [2, 2]],
            pa.list_(pa.int32()),
        ),
        "aj": pa.array(
            [[3, 2, 1], [1], [None, None], [1, None], [1], [], None, [2, 2]], pa.list_(pa.int32())
        ),
        "al": pa.array(
            [[1, 2, 3], [5, 2**40], [None], [1], None, [], [-(2**63)], [2]], pa.list_(pa.int64())
        ),
        "ad": pa.array(
            [
                [1.5, NAN, NAN],
                [0.0, -0.0],
                [-0.0, 0.0, None],
                [INF, -INF, NAN, None],
                None,
                [],
                [None],
                [2.5, -1.0],
            ],
            pa.list_(pa.float64()),
        ),
        "af": pa.array(
            [[1.5, NAN, NAN], [0.0, -0.0], [-0.0, 0.0, None], [INF, 3e38], None, [], [None], [0.5]],
            pa.list_(pa.float32()),
        ),
        "aw": pa.array(
            [
                ["a", "b", "a"],
                [""],
                ["a", None, ""],
                [None],
                None,
                [],
                ["é", "e\u0301", "😀"],
                ["b", "B"],
            ],
            pa.list_(pa.string()),
        ),
        "ab": pa.array(
            [[True, False], [None], [], None, [True, True], [False], [None, True], [False, None]],
            pa.list_(pa.bool_()),
        ),
        "aby": pa.array(
            [[b"a", b"\xff"], [None], [], None, [b"", b"b"], [b"\x00"], [b"b", b"a"], [b"a", None]],
            pa.list_(pa.binary()),
        ),
        "ade": pa.array(
            [
                [Decimal("1.50"), Decimal("-2.00")],
                [None],
                [],
                None,
                [Decimal("0.00")],
                [Decimal("0.05"), Decimal("-0.05")],
                [Decimal("7.25")] * 2,
                [Decimal("9999.99"), None],
            ],
            pa.list_(pa.decimal128(6, 2)),
        ),
        "add": pa.array(
            [_DAYS, [None], [], None, _DAYS[:1], _DAYS[2:], _DAYS[::-1], [dt.date(2021, 1, 1)]],
            pa.list_(pa.date32()),
        ),
        "ats": pa.array(
            [
                [_AT, None],
                [None],
                [],
                None,
                [_AT, _AT - dt.timedelta(days=20000)],
                [_AT],
                [],
                [_AT],
            ],
            pa.list_(pa.timestamp("us", "UTC")),
        ),
        "aa": pa.array(
            [
                [[1, None], [2]],
                [[]],
                [None],
                [[1, None], [1, 2], [1, None], [1]],
                None,
                [],
                [[3], [3]],
                [[1], None, [1, 2, 3], []],
            ],
            pa.list_(pa.list_(pa.int32())),
        ),
        "st": pa.array(
            [
                {"a": 1, "b": "x", "c": {"d": 1.5, "e": [1, None]}},
                {"a": None, "b": None, "c": None},
                None,
                {"a": -5, "b": "", "c": {"d": NAN, "e": []}},
                {"a": 7, "b": "é", "c": {"d": None, "e": None}},
                None,
                {"a": 2147483646, "b": "y", "c": {"d": -0.0, "e": [4, 5]}},
                {"a": 0, "b": "z", "c": {"d": 2.0, "e": [None]}},
            ],
            pa.struct({"a": pa.int32(), "b": pa.string(), "c": _DEEP}),
        ),
        "ast": pa.array(
            [
                [{"k": 2, "v": "b"}, {"k": 1, "v": "a"}],
                [],
                [None],
                [{"k": None, "v": "x"}, {"k": 1, "v": None}, None, {"k": None, "v": None}],
                None,
                [{"k": 1, "v": "a"}, {"k": 1, "v": "a"}],
                [{"k": 3, "v": "c"}],
                [{"k": 1, "v": "b"}, {"k": 1, "v": "B"}, {"k": 0, "v": "z"}],
            ],
            pa.list_(_PAIR),
        ),
        "m": pa.array(
            [
                [("a", 1), ("b", 2)],
                [],
                [("b", None)],
                None,
                [("", 0), ("a", None)],
                [("x", -1)],
                [("é", 5), ("a", 3), (",", 1)],
                [("b", 2147483647)],
            ],
            pa.map_(pa.string(), pa.int32()),
        ),
        "mi": pa.array(
            [
                [(1, "a"), (2, "b")],
                [],
                [(-1, None)],
                None,
                [(3, "c"), (1, "")],
                [(0, "z")],
                [(5, "é"), (7, None)],
                [(2, "b")],
            ],
            pa.map_(pa.int32(), pa.string()),
        ),
        "mm": pa.array(
            [
                [("a", [("b", 1)])],
                [],
                [("a", None)],
                None,
                [("a", [])],
                [("x", [("b", None)])],
                [("a", [("c", 2), ("b", 3)])],
                [("b", [("b", 1)])],
            ],
            pa.map_(pa.string(), pa.map_(pa.string(), pa.int32())),
        ),
    }
)

WHERE = {
    "full": "id in (0, 5, 7)",
    "deep": "id in (0, 4, 6, 7)",
    "inside": "id in (3, 4, 5, 7) and i < 2",
    "lists": "id in (0, 1, 2, 3, 6)",
    "texts": "s is not null",
    "number": "i > 0",
    "small": "id in (0, 1, 2, 5)",
    "two": "id in (5, 6, 7)",
    "keys": "id in (1, 4, 5, 6, 7)",
    "entries": "id in (1, 2, 4, 6)",
    "days": "dd is not null",
    "up": "i <= l and id < 7",
    "unique": "id in (0, 1, 4, 5, 6)",
    "unique2": "id <> 6",
}
