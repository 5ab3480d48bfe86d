"""The modules that enter functions of text in the table."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.texts import (
    bit_functions,
    encoding_functions,
    format_functions,
    text_functions,
    text_patterns,
    value_functions,
)

MODULES: Final = (
    bit_functions,
    encoding_functions,
    format_functions,
    text_functions,
    text_patterns,
    value_functions,
)
