"""Text as bytes and back: encodings, digits, checksums."""

from __future__ import annotations

from typing import Final

from millrace.sql.engine_functions import macro
from millrace.sql.functions.casts import cast
from millrace.sql.functions.function_registry import function
from millrace.sql.functions.string_functions import TEXT
from millrace.sql.functions.texts.text_functions import text
from millrace.sql.typed_sql import NotNative, TypedSql, call_label, combined, require, text_literal
from millrace.sql.types import BINARY, INT, LONG, STRING
from millrace.sql.vectorised import encoding_calls

BYTES: Final = "Bytes and checksums"
_SHA2: Final = (224, 256, 384, 512)
macro(
    "spark_base64",
    "b",
    "CASE WHEN octet_length(b) <= 57 THEN base64(b) ELSE rtrim(regexp_replace(base64(b), "
    "'.{76}', '\\0' || chr(13) || chr(10), 'g'), chr(13) || chr(10)) END",
)


def octets(part: TypedSql, name: str) -> TypedSql:
    """An argument as bytes: text in UTF-8."""
    return part if part.type == BINARY else cast(text(part, name), BINARY)


@function("ascii(s)", group=TEXT)
def _ascii(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    sql = f"CASE WHEN {x.sql} = '' THEN 0 ELSE unicode({x.sql}) END"
    return combined(sql, INT, [x], label=call_label(name, args))


@function("char(n); chr(n)", group=TEXT)
def _char(name: str, args: list[TypedSql]) -> TypedSql:
    require(args[0], args[0].type.is_integer, "a whole number", name)
    n = cast(args[0], LONG)
    sql = f"CASE WHEN {n.sql} < 0 THEN '' ELSE chr(CAST({n.sql} & 255 AS INTEGER)) END"
    return combined(sql, STRING, [n], label=call_label(name, args))


@function("octet_length(s); bit_length(s)", group=TEXT)
def _octet_length(name: str, args: list[TypedSql]) -> TypedSql:
    x = args[0] if args[0].type == BINARY else text(args[0], name)
    size = f"octet_length({x.sql})" if x.type == BINARY else f"strlen({x.sql})"
    sql = size if name == "octet_length" else f"{size} * 8"
    return combined(sql, INT, [x], label=call_label(name, args))


@function("bin(n)", group=BYTES)
def _bin(name: str, args: list[TypedSql]) -> TypedSql:
    require(args[0], args[0].type.is_integer, "a whole number", name)
    n = cast(args[0], LONG)
    return combined(f"bin({n.sql})", STRING, [n], label=call_label(name, args))


@function("hex(x)", group=BYTES)
def _hex(name: str, args: list[TypedSql]) -> TypedSql:
    part = args[0]
    x = cast(part, LONG) if part.type.is_integer else octets(part, name)
    return combined(f"hex({x.sql})", STRING, [x], label=call_label(name, args))


@function("unhex(s)", group=BYTES)
def _unhex(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    good = text_literal("[0-9a-fA-F]*")
    even = f"CASE WHEN strlen({x.sql}) % 2 = 1 THEN '0' || {x.sql} ELSE {x.sql} END"
    sql = f"CASE WHEN regexp_full_match({x.sql}, {good}) THEN unhex({even}) ELSE NULL END"
    return combined(sql, BINARY, [x], label=call_label(name, args))


@function("base64(b)", group=BYTES)
def _base64(name: str, args: list[TypedSql]) -> TypedSql:
    x = octets(args[0], name)
    return combined(f"spark_base64({x.sql})", STRING, [x], label=call_label(name, args))


@function("unbase64(s)", group=BYTES)
def _unbase64(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    sql = f"spark_unbase64({x.sql})"
    return combined(sql, BINARY, [x], label=call_label(name, args), raises=True)


@function("url_encode(s)", group=BYTES)
def _url_encode(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    sql = f"replace(replace(replace(url_encode({x.sql}), '%20', '+'), '~', '%7E'), '%2A', '*')"
    return combined(sql, STRING, [x], label=call_label(name, args))


@function("url_decode(s)", group=BYTES)
def _url_decode(name: str, args: list[TypedSql]) -> TypedSql:
    x = text(args[0], name)
    sql = (
        f"CASE WHEN regexp_matches({x.sql}, '[%+]') THEN spark_url_decode({x.sql}) ELSE {x.sql} END"
    )
    return combined(sql, STRING, [x], label=call_label(name, args), raises=True)


def _charset(name: str, part: TypedSql) -> str:
    known = part.literal.upper() if isinstance(part.literal, str) else ""
    if known not in encoding_calls.CHARSETS:
        raise NotNative(
            f"{name} needs an encoding, written out",
            found=part.label or part.sql,
            fix=f"use one of {', '.join(encoding_calls.CHARSETS)}",
        )
    return known


@function("encode(s, charset)", group=BYTES, least=2)
def _encode(name: str, args: list[TypedSql]) -> TypedSql:
    x, charset = text(args[0], name), _charset(name, args[1])
    sql = f"encode({x.sql})"
    if charset != "UTF-8":
        sql = f"spark_encode({x.sql}, {text_literal(charset)})"
    return combined(sql, BINARY, [x], label=call_label(name, args), raises=charset != "UTF-8")


@function("decode(b, charset)", group=BYTES, least=2)
def _decode(name: str, args: list[TypedSql]) -> TypedSql:
    x, charset = octets(args[0], name), _charset(name, args[1])
    sql = f"spark_decode({x.sql}, {text_literal(charset)})"
    return combined(sql, STRING, [x], label=call_label(name, args), raises=True)


@function("md5(b); sha(b); sha1(b)", group=BYTES)
def _md5(name: str, args: list[TypedSql]) -> TypedSql:
    x = octets(args[0], name)
    step = "md5" if name == "md5" else "sha1"
    return combined(f"{step}({x.sql})", STRING, [x], label=call_label(name, args))


@function("sha2(b, bits)", group=BYTES, least=2)
def _sha2(name: str, args: list[TypedSql]) -> TypedSql:
    x, bits = octets(args[0], name), args[1].literal
    size = 256 if bits == 0 else bits
    if size not in _SHA2:
        raise NotNative("sha2 needs its bits written out", found=str(bits), fix="use 256")
    sql = f"sha256({x.sql})" if size == 256 else f"spark_sha2({x.sql}, {size})"  # noqa: PLR2004
    return combined(sql, STRING, [x], label=call_label(name, args))


@function("crc32(b)", group=BYTES)
def _crc32(name: str, args: list[TypedSql]) -> TypedSql:
    x = octets(args[0], name)
    return combined(f"spark_crc32({x.sql})", LONG, [x], label=call_label(name, args))
