"""Regular expressions where RE2 has not Java's answer: Python's, once for each distinct text.

The patterns come from `java_patterns`, so that they mean in Python what they mean in Java. As in
Java, a pattern that tries many ways takes its time.
"""

from __future__ import annotations

import re

import pyarrow as pa

from millrace.sql.engine_functions import vector_function
from millrace.sql.vectorised.distinct_values import per_value


@vector_function("spark_regexp_like", ("VARCHAR", "VARCHAR"), "BOOLEAN")
def _like(texts: pa.Array, patterns: pa.Array) -> pa.Array:
    def call(text: str, pattern: str) -> bool:
        return re.search(pattern, text) is not None

    return per_value(texts, patterns, call=call, kind=pa.bool_())


@vector_function("spark_regexp_replace", ("VARCHAR", "VARCHAR", "VARCHAR"), "VARCHAR")
def _replace(texts: pa.Array, patterns: pa.Array, replacements: pa.Array) -> pa.Array:
    def call(text: str, pattern: str, replacement: str) -> str:
        return re.sub(pattern, replacement, text)

    return per_value(texts, patterns, replacements, call=call)


@vector_function("spark_regexp_extract", ("VARCHAR", "VARCHAR", "INTEGER"), "VARCHAR")
def _extract(texts: pa.Array, patterns: pa.Array, groups: pa.Array) -> pa.Array:
    def call(text: str, pattern: str, group: int) -> str:
        match = re.search(pattern, text)
        return "" if match is None else match[group] or ""

    return per_value(texts, patterns, groups, call=call)


@vector_function("spark_regexp_count", ("VARCHAR", "VARCHAR"), "INTEGER")
def _count(texts: pa.Array, patterns: pa.Array) -> pa.Array:
    def call(text: str, pattern: str) -> int:
        return sum(1 for _ in re.finditer(pattern, text))

    return per_value(texts, patterns, call=call, kind=pa.int32())


@vector_function("spark_regexp_instr", ("VARCHAR", "VARCHAR"), "INTEGER")
def _instr(texts: pa.Array, patterns: pa.Array) -> pa.Array:
    def call(text: str, pattern: str) -> int:
        match = re.search(pattern, text)
        return 0 if match is None else match.start() + 1

    return per_value(texts, patterns, call=call, kind=pa.int32())


@vector_function("spark_split", ("VARCHAR", "VARCHAR", "INTEGER"), "VARCHAR[]")
def _split(texts: pa.Array, patterns: pa.Array, limits: pa.Array) -> pa.Array:
    return per_value(texts, patterns, limits, call=split, kind=pa.list_(pa.string()))


def split(text: str, pattern: str, limit: int) -> list[str]:
    """The pieces between matches; of a limit above 0, the last piece is the rest of the text."""
    pieces: list[str] = []
    end = 0
    for match in re.finditer(pattern, text):
        if len(pieces) + 1 == limit:
            break
        pieces.append(text[end : match.start()])
        end = match.end()
    return [*pieces, text[end:]]
