"""All modules with functions of nested values; importing them fills the table of functions."""

from __future__ import annotations

from typing import Final

from millrace.sql.functions.nested import (
    access,
    array_functions,
    array_makers,
    array_sets,
    higher_order,
    json_functions,
    map_functions,
    struct_functions,
)

MODULES: Final = (
    array_functions,
    array_sets,
    array_makers,
    access,
    map_functions,
    struct_functions,
    json_functions,
    higher_order,
)
