"""Encodings and checksums that the engine lacks, once for each distinct value of a call."""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Final
from urllib.parse import unquote_to_bytes

import pyarrow as pa

from millrace.sql.engine_functions import vector_function
from millrace.sql.vectorised.distinct_values import ValueRefused, per_value

CHARSETS: Final = {
    "UTF-8": "utf-8",
    "US-ASCII": "ascii",
    "ISO-8859-1": "latin-1",
    "UTF-16BE": "utf-16-be",
    "UTF-16LE": "utf-16-le",
    "UTF-16": "utf-16",
    "UTF-32": "utf-32-be",
}
"""Spark's names of encodings and Python's. Java writes UTF-16 with a mark and the high byte first,
and UTF-32 without a mark."""
_ALPHABET: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


@vector_function("spark_encode", ("VARCHAR", "VARCHAR"), "BLOB")
def _encode(texts: pa.Array, charsets: pa.Array) -> pa.Array:
    def call(text: str, charset: str) -> bytes:
        try:
            if charset == "UTF-16":
                return (b"\xfe\xff" + text.encode("utf-16-be")) if text else b""
            return text.encode(CHARSETS[charset])
        except UnicodeEncodeError:
            raise ValueRefused(
                f"encode: a character of {text[:40]!r} is not in {charset}"
            ) from None

    return per_value(texts, charsets, call=call, kind=pa.binary())


@vector_function("spark_decode", ("BLOB", "VARCHAR"), "VARCHAR")
def _decode(values: pa.Array, charsets: pa.Array) -> pa.Array:
    def call(value: bytes, charset: str) -> str:
        try:
            return value.decode(CHARSETS[charset])
        except UnicodeDecodeError:
            raise ValueRefused(f"decode: {value[:40]!r} is not {charset}") from None

    return per_value(values, charsets, call=call)


@vector_function("spark_unbase64", ("VARCHAR",), "BLOB")
def _unbase64(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=unbase64, kind=pa.binary())


def unbase64(text: str) -> bytes:
    """Bytes of a text whose other characters are passed over, as in mail."""
    raw = text.encode()
    kept = bytearray()
    for byte in raw:
        if byte == ord("="):
            break
        if byte in _ALPHABET:
            kept.append(byte)
    if len(kept) % 4 == 1:
        raise ValueRefused(f"unbase64: {text[:40]!r} ends within a byte")
    return base64.b64decode(bytes(kept) + b"=" * (-len(kept) % 4))


@vector_function("spark_url_decode", ("VARCHAR",), "VARCHAR")
def _url_decode(texts: pa.Array) -> pa.Array:
    return per_value(texts, call=url_decode)


def url_decode(text: str) -> str:
    """A text whose bytes are written as %XX, and blanks as +."""
    for at, char in enumerate(text):
        if char == "%" and not (len(text) > at + 2 and set(text[at + 1 : at + 3]) <= _HEX):
            raise ValueRefused(f"url_decode: {text[:40]!r} has % before something else than a byte")
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


@vector_function("spark_sha2", ("BLOB", "INTEGER"), "VARCHAR")
def _sha2(values: pa.Array, bits: pa.Array) -> pa.Array:
    def call(value: bytes, size: int) -> str:
        return hashlib.new(f"sha{size}", value).hexdigest()

    return per_value(values, bits, call=call)


@vector_function("spark_crc32", ("BLOB",), "BIGINT")
def _crc32(values: pa.Array) -> pa.Array:
    return per_value(values, call=zlib.crc32, kind=pa.int64())
