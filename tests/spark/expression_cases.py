"""What is compared with Spark: a table of edge values and the expressions over it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa

NAN, INF = float("nan"), float("inf")
I32, I64 = 2**31, 2**63


def _day(text: str | None) -> dt.date | None:
    return None if text is None else dt.date.fromisoformat(text)


def _moment(text: str | None) -> dt.datetime | None:
    return None if text is None else dt.datetime.fromisoformat(text + "+00:00")


def _d(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


ROWS = 8
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int32()),
        "y": pa.array([-128, 127, 0, 1, -1, None, 5, 7], pa.int8()),
        "h": pa.array([-32768, 32767, 0, 1, -1, None, 5, 7], pa.int16()),
        "i": pa.array([-I32, I32 - 1, 0, 1, -1, None, 5, 7], pa.int32()),
        "l": pa.array([-I64, I64 - 1, 0, 1, -1, None, 5, 7], pa.int64()),
        "a": pa.array([-7, 7, 0, 3, -3, None, 100, 12345], pa.int32()),
        "b": pa.array([2, -2, 3, -3, 7, 5, None, 1], pa.int64()),
        "f": pa.array([1.5, -0.0, 0.1, NAN, INF, None, -2.5, 3e38], pa.float32()),
        "x": pa.array([1.5, -0.0, 0.1, NAN, INF, None, -2.675, 1e300], pa.float64()),
        "z": pa.array([0.0, 0.0, -0.1, NAN, -INF, 1.0, None, 2.5], pa.float64()),
        "w": pa.array([1.005, -2.5, 0.285, 1e15 + 0.5, -1e-9, None, 2.5, 123456.785]),
        "d": pa.array(
            list(map(_d, ["1.50", "-2.55", "0.00", "99999999.99", "-0.01", None, "7.25", "3.00"])),
            pa.decimal128(10, 2),
        ),
        "e": pa.array(
            list(map(_d, ["1.25", "-3.5", "7", "123456789.123456789", "-0.000001", "2", None, "3"])),
            pa.decimal128(38, 18),
        ),
        "g": pa.array(
            list(map(_d, ["1", "-3", "7", "12345678901234567890", "-2", None, "3", "11"])),
            pa.decimal128(20, 0),
        ),
        "s": pa.array(["hello", "", "héllo wörld", "straße", "  a b ", None, "😀x%_", "ÄÖ\\n"]),
        "t": pa.array(["l", "", "ö", "ss", " ", "q", None, "\\"]),
        "n": pa.array(["12", " -3 ", "+7", "0", "007", None, "2147483647", "9"]),
        "m": pa.array(["1.5", " -3e2 ", "+.5", "5.", "0", None, "1e-3", "12345678.905"]),
        "k": pa.array(
            ["2020-02-29", " 1999-1-5", "2020", "2021-12", "2020-01-01 10:00", None, "0001-01-01",
             "9999-12-31T"]
        ),  # fmt: skip
        "q": pa.array(
            ["2020-02-29 10:11:12", "1999-1-5", "2020-01-01T1:2", "2021-12-31 23:59:59.999999",
             "1970-01-01 00:00:00.5", None, "1969-12-31 23:59:59", "2038-01-19 03:14:08"]
        ),  # fmt: skip
        "o": pa.array(["true", "F", " yes ", "0", "N", None, "1", "t"]),
        "p": pa.array([True, False, None, True, False, True, False, None]),
        "r": pa.array([True, False, True, None, None, False, True, None]),
        "dd": pa.array(
            list(map(_day, ["2020-02-29", "1970-01-01", "1969-12-31", "2021-01-01", "1900-02-28",
                            None, "2020-01-31", "9999-12-31"])),
            pa.date32(),
        ),  # fmt: skip
        "de": pa.array(
            list(map(_day, ["2020-03-31", "1999-12-31", "1600-02-29", "2024-12-30", "2019-02-28",
                            "2020-01-05", None, "2022-07-04"])),
            pa.date32(),
        ),  # fmt: skip
        "ts": pa.array(
            list(map(_moment, ["2020-02-29T10:11:12.500000", "1970-01-01T00:00:00",
                               "1969-12-31T23:59:59.999999", "2021-03-28T00:59:59",
                               "2021-11-07T05:30:00", None, "2020-01-31T23:00:00",
                               "2037-12-31T23:59:59"])),
            pa.timestamp("us", "UTC"),
        ),  # fmt: skip
        "bi": pa.array([b"A", b"", b"\xc3\xa9", b"abc", b"b", None, b"x", b"\x00"], pa.binary()),
    }
)

ARITHMETIC = """
a + 1 | a - b | a * b | a / b | a div b | a % b | -a | -b | a + 1L | 2Y + 1Y | y + 0Y | h + 0 | l * 1 | 2S * 3S
i + 0L | i - 1L | l / 2 | l % 3 | l % -1L | l % b | i % 7 | a / 2 | a div 3 | a % 5 | y / h + 1 where y
x + 1 | x - 1 | x * 2 | x + z | x - z | x * z | f + f | f * f | f + a | f - 1L | f + d | x + d | d * w | f / 2 | w / 3
x % 2 | x % 3.5D | w % 0.1D | f % 2 | 7 / 2 | -7 div 2 | -7 % 3 | 1 / 3 | a + null | null * d | a * 1.5 | mod(a, 3)
d + d | d - 1 | d * d | d / d where nz | d / 3 | d % 0.7 | d div 2 | d + a | d * b | d - 1.5 | d / 7.00 | d / b | d % b | -d | d + g
e + 1 | e - e | e * 2 | e / 3 | e * 1.5 | e + d | e / d where nz | e / g | g + g | g * 2 | g / 3 | g * d | g / b | g % 7 | g div 3 | e % 2.5 | e div 3
1.5 + 1 | 1.50 * 2 | 1.5 / 3 | 100.0 * d / 3 | d * (1 - 0.05) * (1 + 0.07) | 1.1 * 1.1 * 1.1 | 0.001 + 1 | 1. + 2 | .5 + 1
1e3 | 1.5e-3 | 2147483648 | -2147483648 | 9223372036854775808 | -9223372036854775808 | -9223372036854775808L | 1.5BD | -1.5 | 1.5F | -0.0D
abs(a) | abs(d) | abs(x) | abs(f) | negative(b) | round(a) | round(d) | round(d, 1) | round(d, 5) | round(e, 3) | round(e) | round(g) | round(w) | round(w, 2)
round(x) | round(x, 2) | round(w, 8) | round(l, 2) | floor(d) | floor(w) | floor(a) | floor(e) | floor(g) | ceil(d) | ceil(w) | ceiling(e) | ceil(l) | floor(f) where small
sqrt(x) | exp(w) where small | ln(x) | log(w) | log10(d) | log2(a) | pow(w, 2) | power(a, 0.5) | pow(x, z) | pow(1, x) | sign(x) | signum(d) | exp(z) | sqrt(a)
greatest(a, b) | least(a, b, 3) | greatest(x, z) | least(x, z) | greatest(d, a) | least(s, t) | greatest(dd, de) | greatest(a, x) | least(dd, ts) | isnan(x) | isnan(f)
"""
CONDITIONS = """
a = b | a <> b | a != 3 | a == 3 | a < b | a <= 7 | a > b | a >= -3 | a <=> b | a <=> null | a is distinct from b | a is not distinct from null
x = z | x < z | x > z | x >= 1.5 | x = x | f = x | f < 0.1 | f = 1.5 | x <=> z | x = 'nan' | z = 0 | f > l | l > x | y = l | h < i
d = 1.5 | d > a | d < x | e = d | g = d | e > 1 | d in (1.5, 3) | e between -1 and 5 | g < e | e = g
s = t | s < t | s > 'h' | s <=> t | s = 'straße' | n = 12 | n > 5L | m < 2.0 | m > 1.5D | k = dd | k < de | '2020-02-29' = dd | dd > '2000-01-01' | ts > '2020-01-01' | q < ts | o = p | bi = 'A' | bi < X'62' | dd = ts | dd < ts
p and r | p or r | not p | p = r | p > r | p is true | p is not false | p is null | p is not null | not (p is null) | a is null and p | !r | null and p | null or p | p <=> r
a in (3, 7, null) | a not in (3, 7) | a in (3) | s in ('hello', '') | a in (1, 2.5) | n in (12, 9) | dd in ('2020-02-29') | a between -3 and b | a not between 0 and 10 | dd between '1970-01-01' and de | s between 'a' and 'i'
s like 'h%' | s like '%l%' | s not like '%a%' | s like 'h_llo%' | s like '%\\\\%\\\\_' | s like '%\\\\\\\\n' | s like '%!%!_' escape '!' | s like t where early | s like '' | s like '%😀_%'
case when a > 3 then 'big' when a is null then 'none' else 'small' end | case a when 3 then 1.5 when 7 then 2 end | if(p, a, b) | if(a > 0, 1, null) | case when p then x else d end | case when r then dd else ts end | if(p, 1, '5')
coalesce(a, b, 0) | coalesce(null, d, 1) | coalesce(s, 'none') | nvl(a, 1) | ifnull(x, 0) | nvl2(a, 'y', 'n') | nullif(a, 3) | nullif(b, 7) | nullif(d, 3) | isnull(a) | isnotnull(s) | nanvl(x, 0D) | coalesce(dd, '2020-01-01') | coalesce(f, a) | coalesce(g, e)
b <> 7 and a / (b - 7) > 0 | b = 3 or a / (b - 3) > 0 | a % 2 = 1 and d > 1
"""
TEXT = """
s || t | s || 'x' || a | concat(s, t, 'z') | concat(a, b) | concat('a', d) | concat(s) | concat(p, dd) | concat(bi, bi) | 'a' 'b' | 'it''s' | 'a''' | "q""q" | '''' | 'tab\\tend' | "double" | concat(s, null) | ts || ''
upper(s) | lower(s) | ucase(t) | lcase(s) | upper(a) | length(s) | length(a) | length(bi) | char_length(t) | character_length(d) | lower('İΣα')
substring(s, 2) | substring(s, 0, 2) | substring(s, -3, 2) | substring(s, -10, 7) | substring(s, 1, -1) | substr(s, 2, 3) | substring(s, a, 2) | substring(s, -2) | substring(s, 3, id) | substring(a, 1, 2) | substring(s, b, b) | substring(s from 2 for 3)
left(s, 2) | right(s, 2) | left(s, -1) | right(s, 0) | right(s, a) | trim(s) | ltrim(s) | rtrim(s) | btrim(s) | trim(a) | trim('\\ta ') | replace(s, 'l', 'L') | replace(s, t, '-') | replace(s, 'l') | replace(s, '', 'x') | replace(a, 1, 2)
startswith(s, 'h') | endswith(s, t) | contains(s, t) | startswith(s, '') | contains(s, 'ö') | startswith(a, '1') | instr(s, t) | instr(s, 'ö') | instr(s, 'zz')
"""
CASTS = """
cast(a as string) | cast(y as string) | cast(l as string) | cast(d as string) | cast(e as string) | cast(0.5 as string) | cast(-0.05 as string) | cast(p as string) | cast(dd as string) | cast(ts as string) | cast(cast(bi as string) as binary) where utf | cast(s as binary)
cast(a as tinyint) where small | cast(y as int) | cast(h as bigint) | cast(i as bigint) | cast(a as double) | cast(l as double) | cast(l as float) | cast(i as float) | cast(a as decimal(10,2)) | cast(l as decimal(20,0)) | cast(a as boolean) | a::bigint | int(b) | string(a) | double(d) | bigint(a)
cast(d as int) | cast(d as bigint) | cast(d as double) | cast(e as double) | cast(g as double) | cast(d as float) | cast(e as float) | cast(d as decimal(9,1)) where small | cast(d as decimal(38,10)) | cast(e as decimal(20,2)) | cast(d as boolean) | cast(e as bigint) | cast(-1.9 as int)
cast(w as int) where small | cast(w as bigint) | cast(f as double) | cast(x as float) | cast(z as float) | cast(w as decimal(20,2)) | cast(w as decimal(38,10)) | cast(x as boolean) | cast(z as boolean) | cast(9223372036854775808D as bigint) | cast(-2.9D as smallint) | cast(w as float)
cast(n as int) | cast(n as bigint) | cast(n as decimal(12,1)) | cast(n as double) | cast(m as double) | cast(m as decimal(12,2)) | cast(m as decimal(20,5)) | cast('NaN' as double) | cast(' -Infinity ' as double) | cast('inf' as double) | cast('1d' as double) | cast(o as boolean) | cast(k as date) | cast(q as timestamp) | cast(q as timestamp_ntz)
cast(p as int) | cast(p as double) | cast(p as decimal(3,1)) | cast(p as bigint) | cast(dd as timestamp) | cast(de as timestamp_ntz) | cast(ts as date) | cast(ts as timestamp_ntz) | cast(ts as bigint) | cast(cast(ts as timestamp_ntz) as timestamp) | cast(cast(ts as timestamp_ntz) as string) | cast(cast(ts as timestamp_ntz) as date) | cast(null as int) | cast(null as string) | timestamp(dd) | date(ts) | to_date(k) | to_date(ts)
date '2020-02-29' | timestamp '2020-02-29 10:11:12' | timestamp '2020-02-29 10:11:12.5' | X'1F' | X'' | true | null | 'x' | DATE '1600-01-01'
"""
DATES = """
dd + 1 where early | dd - 1 | 1 + de | de + a | de - h where small | de + interval 1 day | de - interval 1 month | de + interval 1 year | de + interval '2' month | de - interval 3 weeks | interval 1 day + de | de + interval 1 hour | ts + interval 1 day | ts - interval 1 month | ts + interval 90 minutes | ts + interval 1 year | ts - interval 10 seconds
date_add(de, 1) | date_add(ts, 1) | date_add('2020-02-28', 2) | date_sub(de, 1) | date_sub(de, a) | add_months(de, 1) | add_months(de, -1) | add_months(dd, 0) | add_months(de, b) | datediff(dd, de) | datediff(de, '2020-01-01') | date_diff(ts, dd) | last_day(de) | last_day(ts)
year(dd) | month(dd) | day(de) | dayofmonth(de) | quarter(de) | dayofyear(dd) | dayofyear(de) | weekofyear(dd) | weekofyear(de) | dayofweek(dd) | weekday(de) | year(ts) | day(ts) | hour(ts) | minute(ts) | second(ts) | hour(q) | year(k) | hour(dd) | extract(year from dd) | extract(hour from ts) | quarter(ts)
date_trunc('month', ts) | date_trunc('week', ts) | date_trunc('hour', ts) | date_trunc('DAY', ts) | date_trunc('quarter', dd) | trunc(de, 'MM') | trunc(de, 'year') | trunc(ts, 'quarter') | trunc(de, 'week') | date_trunc('minute', ts) | date_trunc('second', ts) | date_trunc('year', ts)
"""
WHERE = {
    "": "",
    "nz": "d <> 0",
    "small": "id in (0, 1, 2, 6)",
    "early": "id < 7",
    "utf": "id <> 7",
    "y": "id > 5",
}
ERRORS = """
y + 1Y | i + 1 | i - 1 | l + 1L | l * 2L | -i | -y | -l | abs(y) | abs(l) | a / 0 | x / 0 | d / 0 | a % 0 | d % 0.0 | x % 0 | a div 0 | d div 0 | l div -1L | 1 / (a - a) | mod(a, 0)
cast(i as tinyint) | cast(l as int) | cast(x as int) | cast(x as bigint) | cast(1e19D as bigint) | cast(d as tinyint) | cast(d as decimal(3,1)) | cast(w as decimal(5,0)) | cast(s as int) | cast(m as int) | cast(s as double) | cast('0x10' as double) | cast('' as int) | cast(s as decimal(5,1)) | cast(s as boolean) | cast(s as date) | cast('2020-02-30' as date) | cast('2020-1-1x' as date) | cast(s as timestamp) | cast('1_000' as int) | cast('1.5' as int) | cast(' ' as double)
s = 5 | n = dd | a + 2147483647 * 1 | floor(x) | ceil(1e30D) | s like 'a' || t || '\\\\a' | cast(l as decimal(5,0)) | cast('NaN' as decimal(5,0)) | cast(a as decimal(4,2)) | cast(2147483648D as int) | cast(128.0 as tinyint)
"""
AGGREGATES = """
sum(a) | sum(b) | sum(y) | sum(h) | sum(w) | sum(f) | sum(x) | sum(d) | sum(e) | sum(g) | sum(a * 2) | sum(d * d) | sum(a + b) | sum(if(p, 1, 0)) | sum(case when a > 0 then d end) | sum(distinct y) | sum(distinct d) | sum(a) / count(*) | sum(d) / sum(a) | 100.00 * sum(d) / sum(g)
count(*) | count(1) | count(a) | count(s) | count(distinct a) | count(distinct x) | count(distinct s) | count(distinct z) | min(a) | max(l) | min(x) | max(x) | min(z) | max(f) | min(s) | max(s) | min(d) | max(e) | min(dd) | max(ts) | max(p) | min(p) | min(bi) | max(upper(t)) | min(y)
avg(a) | avg(l) | avg(w) | avg(x) | avg(f) | avg(d) | avg(e) | avg(g) | mean(b) | avg(d * 2) | avg(a) + 1 | round(avg(d), 2) | stddev(a) | stddev_samp(w) | stddev_pop(a) | std(d) | variance(a) | var_samp(b) | var_pop(w) | var_pop(x) | stddev(z) | bool_and(p) | bool_or(r) | every(r) | some(p) | any(p) | coalesce(sum(a), 0) | max(a) - min(a) | count(*) > 1 and max(p) | cast(sum(a) as string) || 'x'
"""  # noqa: E501


def listed(text: str) -> list[str]:
    """The expressions of a block."""
    return [one.strip() for line in text.strip().splitlines() for one in line.split(" | ")]
