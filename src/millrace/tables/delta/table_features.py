"""Which features of Delta tables are written here; all others are refused by their name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.errors import UserError
from millrace.tables.delta.delta_log import TableState

_WRITTEN: Final = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Features that a table may list. What some of them can ask for is refused where it is used."""
_WRITER_MAX: Final = 7
CHANGE_FEED: Final = "delta.enableChangeDataFeed"
_FIELD_FEATURES: Final = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generation expression (generatedColumns)",
    "delta.identity.start": "an identity (identityColumns)",
    "__CHAR_VARCHAR_TYPE_STRING": "a length of char or varchar",
}


def check_writable(state: TableState, *, who: str, where: str) -> None:
    """Refuse a table with a feature that would be broken by files that are added."""
    protocol, metadata = state.protocol, state.metadata
    if protocol.writer > _WRITER_MAX:
        raise _refused(who, where, f"writer version {protocol.writer}")
    unknown = sorted(protocol.writer_features - _WRITTEN)
    if unknown:
        raise _refused(who, where, f"feature {unknown[0]}")
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    if mode != "none":
        raise _refused(who, where, f"column mapping by {mode} (columnMapping)")
    for name in metadata.configuration:
        if name.startswith("delta.constraints."):
            raise _refused(who, where, f"a constraint (checkConstraints): {name}")
    for field in metadata.fields:
        _check_field(field, who=who, where=where)


def check_replaceable(state: TableState, *, who: str, where: str) -> None:
    """Refuse a table whose rows may not be taken out, or of which each change is recorded."""
    for name, feature in (("delta.appendOnly", "appendOnly"), (CHANGE_FEED, "changeDataFeed")):
        if state.metadata.configuration.get(name, "").lower() == "true":
            raise UserError(
                f"{who}: rows of {where} cannot be replaced\n"
                f"  found: {name} is true ({feature})\n"
                "  to fix: append, switch that off, or write with Spark"
            )


def _check_field(field: Mapping[str, Any], *, who: str, where: str) -> None:
    for key, what in _FIELD_FEATURES.items():
        if key in (field.get("metadata") or {}):
            raise _refused(who, where, f"column {field['name']!r} has {what}")


def _refused(who: str, where: str, found: str) -> UserError:
    return UserError(
        f"{who} cannot write to the table {where}\n  found: {found}\n"
        "  to fix: switch that feature off if the table allows it, or write with Spark"
    )
