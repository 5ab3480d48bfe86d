"""All modules with functions of nested values; importing them fills the table of functions."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.nested import (
    access,
    array_functions,
    array_sets,
    higher_order,
    map_functions,
    struct_functions,
)

MODULES: Final = (
    array_functions,
    array_sets,
    access,
    map_functions,
    struct_functions,
    higher_order,
)
