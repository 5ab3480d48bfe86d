"""Calls of functions that have no example in Spark's documentation in the form of Python."""

from __future__ import annotations

from typing import Final

ROWS: Final = "SELECT * FROM VALUES (1, 'b'), (2, NULL), (2, 'a') AS t(n, s)"
ARRAYS: Final = "SELECT array(1, NULL, 3) AS a, array(4, 5) AS b, map('x', 1, 'y', 2) AS m"
TIMES: Final = (
    "SELECT * FROM VALUES (timestamp'2024-02-29 12:34:56', 1), (timestamp'2024-03-01', 2) "
    "AS t(at, n)"
)
BYTES: Final = "SELECT X'0101000000000000000000F03F0000000000000040' AS w"
ORDERED_ROWS: Final = "SELECT * FROM VALUES ('A', 1), ('A', 3), ('B', 2), ('A', 2) AS t(a, b)"

NO_COLUMNS: Final[dict[str, str]] = {
    "broadcast": "marks rows, and is no column; a dataset is taken too",
    "udf": "makes a function: tests/spark/test_udfs.py",
    "pandas_udf": "makes a function: tests/spark/test_udfs.py",
    "arrow_udf": "makes a function: tests/spark/test_udfs.py",
    "udtf": "makes a table function: tests/spark/test_udtfs.py",
    "arrow_udtf": "makes a table function: tests/spark/test_udtfs.py",
    "call_udf": "calls a function by name: tests/spark/test_udfs.py",
    "AnalyzeArgument": "a class of table functions",
    "AnalyzeResult": "a class of table functions",
    "OrderingColumn": "a class of table functions",
    "PartitioningColumn": "a class of table functions",
    "SelectedColumn": "a class of table functions",
    "SkipRestOfInputTableException": "a class of table functions",
    "UserDefinedFunction": "a class of functions",
    "UserDefinedTableFunction": "a class of functions",
    **dict.fromkeys(
        ("years", "months", "days", "hours", "bucket"),
        "is for `partitionedBy` of `writeTo`, which is Spark's",
    ),
    "ArrowUDFType": "names of kinds of functions",
    "PandasUDFType": "names of kinds of functions",
}
"""Public names that make no column: why."""

ORDERED: Final[dict[str, str]] = {
    "cume_dist": "",
    "dense_rank": "",
    "lag": "'b', 2, 0",
    "lead": "'b'",
    "nth_value": "'b', 2",
    "ntile": "2",
    "percent_rank": "",
    "rank": "",
    "row_number": "",
    "counter_diff": "'b'",
}
"""Functions over windows, and their arguments."""

_ORDERS: Final = (
    *("asc", "asc_nulls_first", "asc_nulls_last"),
    *("desc", "desc_nulls_first", "desc_nulls_last"),
)
HAND_MADE: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "col": ((ROWS, "F.col('n')"), (ROWS, "F.col('t.s')")),
    "column": ((ROWS, "F.column('n')"),),
    "lit": (
        ("", "F.lit(1)"),
        ("", "F.lit('a')"),
        ("", "F.lit(None)"),
        ("", "F.lit(1.5)"),
        ("", "F.lit(True)"),
        ("", "F.lit([1, 2])"),
        ("", "F.lit(2**40)"),
    ),
    "expr": ((ROWS, "F.expr('n + 1')"), (ROWS, "F.expr('n + 1 AS m')")),
    "when": (
        (ROWS, "F.when(F.col('n') > 1, 'many').otherwise('one')"),
        (ROWS, "F.when(F.col('n') > 1, F.col('s'))"),
    ),
    "call_function": ((ROWS, "F.call_function('upper', F.col('s'))"),),
    "negate": ((ROWS, "F.negate('n')"), (ROWS, "F.negate(F.col('n') + 1)")),
    "bitwise_not": ((ROWS, "F.bitwise_not('n')"),),
    "count_distinct": (
        (ROWS, "F.count_distinct('n')"),
        (ROWS, "F.count_distinct('n', F.col('s'))"),
        (ROWS, "F.countDistinct('n')"),
    ),
    "sum_distinct": ((ROWS, "F.sum_distinct('n')"), (ROWS, "F.sumDistinct('n')")),
    "product": ((ROWS, "F.product('n')"),),
    "listagg_distinct": (
        (ROWS, "F.listagg_distinct('s')"),
        (ROWS, "F.listagg_distinct('s', ',')"),
    ),
    "string_agg_distinct": ((ROWS, "F.string_agg_distinct('n')"),),
    "create_map": (
        (ROWS, "F.create_map('n', 's')"),
        (ROWS, "F.create_map(F.lit('k'), F.col('n'))"),
    ),
    "unhex": (("", "F.unhex(F.lit('537061726B'))"),),
    "collate": (("", "F.collate(F.lit('a'), 'UTF8_LCASE') == F.lit('A')"),),
    "uniform": (("", "F.uniform(F.lit(0), F.lit(1), F.lit(7))"),),
    "randstr": (("", "F.randstr(F.lit(4), F.lit(7))"),),
    "extract": ((TIMES, "F.extract(F.lit('month'), 'at')"),),
    "timestamp_add": ((TIMES, "F.timestamp_add('MONTH', 'n', 'at')"),),
    "timestamp_diff": ((TIMES, "F.timestamp_diff('HOUR', 'at', F.lit('2024-03-02'))"),),
    "window": (
        (TIMES, "F.window('at', '1 hour')"),
        (TIMES, "F.window('at', '1 hour', '30 minutes')"),
        (TIMES, "F.window('at', '1 hour').getField('start').alias('start')"),
    ),
    "session_window": ((TIMES, "F.session_window('at', '5 minutes')"),),
    "window_time": (("SELECT window(timestamp'2024-02-29', '1 hour') AS w", "F.window_time('w')"),),
    "aggregate": (
        (ARRAYS, "F.aggregate('a', F.lit(0), lambda x, y: x + F.coalesce(y, F.lit(0)))"),
        (ARRAYS, "F.aggregate('b', F.lit(0), lambda x, y: x + y, lambda x: x * 10)"),
    ),
    "reduce": ((ARRAYS, "F.reduce('b', F.lit(0), lambda x, y: x + y)"),),
    "exists": ((ARRAYS, "F.exists('a', lambda x: x > 2)"),),
    "filter": (
        (ARRAYS, "F.filter('a', lambda x: x.isNotNull())"),
        (ARRAYS, "F.filter('a', lambda x, i: i > 0)"),
    ),
    "forall": ((ARRAYS, "F.forall('b', lambda x: x > 2)"),),
    "transform": (
        (ARRAYS, "F.transform('a', lambda x: x * 2)"),
        (ARRAYS, "F.transform('a', lambda x, i: x + i)"),
    ),
    "map_filter": ((ARRAYS, "F.map_filter('m', lambda k, v: v > 1)"),),
    "map_zip_with": ((ARRAYS, "F.map_zip_with('m', 'm', lambda k, v, w: v + w)"),),
    "transform_keys": ((ARRAYS, "F.transform_keys('m', lambda k, v: F.upper(k))"),),
    "transform_values": ((ARRAYS, "F.transform_values('m', lambda k, v: v + 1)"),),
    "zip_with": ((ARRAYS, "F.zip_with('a', 'b', lambda x, y: x + y)"),),
    "grouping": ((ROWS, "F.grouping('n')"),),
    "grouping_id": ((ROWS, "F.grouping_id('n')"),),
    "log": ((ROWS, "F.log(2.0, 'n')"), (ROWS, "F.log('n')")),
    "substring": ((ROWS, "F.substring('s', 1, 2)"),),
    "convert_timezone": ((TIMES, "F.convert_timezone(None, F.lit('Asia/Tokyo'), 'at')"),),
    "time_diff": (
        ("", "F.time_diff(F.lit('HOUR'), F.to_time(F.lit('1')), F.to_time(F.lit('2')))"),
    ),
    "time_trunc": (("", "F.time_trunc(F.lit('HOUR'), F.to_time(F.lit('10:20')))"),),
    "time_to_micros": (("", "F.time_to_micros(F.to_time(F.lit('10:20')))"),),
    "time_to_millis": (("", "F.time_to_millis(F.to_time(F.lit('10:20')))"),),
    "time_to_seconds": (("", "F.time_to_seconds(F.to_time(F.lit('10:20')))"),),
    "unwrap_udt": ((ROWS, "F.unwrap_udt('n')"),),
    "aes_encrypt": (("", "F.aes_encrypt(F.lit('Spark'), F.lit('0000111122223333'))"),),
    "hmac": (("", "F.hmac(F.lit('key'), F.lit('text'))"),),
} | {name: ((ROWS, f"F.row_number().over(Window.orderBy(F.{name}('s')))"),) for name in _ORDERS}
"""By function: queries of rows, and calls over them in Python."""
