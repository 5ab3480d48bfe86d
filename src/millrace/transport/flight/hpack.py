"""Reads the header block of a connection's first call (RFC 7541). Pure.

Invariant: work and memory grow with the block's length only, which the caller limits: no dynamic
table outlives the block, and no string is longer than what was sent, or 8/5 of it if it was coded.
"""

from __future__ import annotations

from typing import Final

_STATIC: Final = (
    ":authority :method :method :path :path :scheme :scheme :status :status :status :status "
    ":status :status :status accept-charset accept-encoding accept-language accept-ranges accept "
    "access-control-allow-origin age allow authorization cache-control content-disposition "
    "content-encoding content-language content-length content-location content-range content-type "
    "cookie date etag expect expires from host if-match if-modified-since if-none-match if-range "
    "if-unmodified-since last-modified link location max-forwards proxy-authenticate "
    "proxy-authorization range referer refresh retry-after server set-cookie "
    "strict-transport-security transfer-encoding user-agent vary via www-authenticate"
)
_STATIC_NAMES: Final = tuple(_STATIC.split())
# How many bits the code of each byte has. Codes of one length follow each other in the bytes'
# order, and shorter ones come first, so lengths say it all (appendix B).
_CODE_BITS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
_END: Final = 256
Headers = dict[str, list[str]]


class NotHeaders(Exception):
    """The bytes are not a header block."""


def decode_headers(block: bytes) -> Headers:
    """The headers of a connection's first block, each with its values."""
    headers: Headers = {}
    added: list[tuple[bytes, bytes]] = []  # The newest first.
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _number(block, at, 7)
                name, value = _entry(index, added)
            elif first >> 5 == 1:
                _, at = _number(block, at, 5)  # The table's size; it only ever gets smaller.
                continue
            else:
                index, at = _number(block, at, 6 if first & 0x40 else 4)
                name, at = (_entry(index, added)[0], at) if index else _string(block, at)
                value, at = _string(block, at)
                if first & 0x40:
                    added.insert(0, (name, value))
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    except IndexError as error:
        raise NotHeaders("a header block ends early") from error
    return headers


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    number, at = block[at] & most, at + 1
    shift = 0
    while number >= most:
        if shift > 21:  # noqa: PLR2004 - longer than any block that is read
            raise NotHeaders("a number in a header block is too long")
        number += (block[at] & 0x7F) << shift
        shift += 7
        at += 1
        if not block[at - 1] & 0x80:
            break
    return number, at


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    is_coded = bool(block[at] & 0x80)
    size, at = _number(block, at, 7)
    if at + size > len(block):
        raise NotHeaders("a string in a header block is too long")
    text = block[at : at + size]
    return _decoded(text) if is_coded else text, at + size


def _entry(index: int, added: list[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """An entry of the tables. No value of the static one is of use here."""
    if index == 0:
        raise NotHeaders("a header block names entry 0")
    if index <= len(_STATIC_NAMES):
        return _STATIC_NAMES[index - 1].encode(), b""
    return added[index - len(_STATIC_NAMES) - 1]


def _codes() -> dict[tuple[int, int], int]:
    """The byte that each code stands for, by the code's bits and their count."""
    codes: dict[tuple[int, int], int] = {}
    code = bits = 0
    for symbol in sorted(range(len(_CODE_BITS)), key=lambda number: (_CODE_BITS[number], number)):
        code <<= _CODE_BITS[symbol] - bits
        bits = _CODE_BITS[symbol]
        codes[bits, code] = symbol
        code += 1
    return codes


_SYMBOLS: Final = _codes()


def _decoded(text: bytes) -> bytes:
    out = bytearray()
    code = bits = 0
    for byte in text:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            bits += 1
            symbol = _SYMBOLS.get((bits, code))
            if symbol is not None:
                if symbol == _END:
                    raise NotHeaders("a string in a header block has an end within it")
                out.append(symbol)
                code = bits = 0
    if bits > 7 or code != (1 << bits) - 1:  # noqa: PLR2004 - what fills up the last byte
        raise NotHeaders("a string in a header block ends within a byte")
    return bytes(out)
