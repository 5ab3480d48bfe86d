"""A topic of others that a job's rows go to, and which columns become what of a message. Pure.

Columns are those of Spark's sink: `value`, `key`, `headers`, `partition`. Without a column for the
value a row is a JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from millrace.errors import UserError
from millrace.journal.kafka import message_rows
from millrace.names import existing, shown
from millrace.storage.storage_options import StorageOptions

PLACES: Final = "millrace_places"
"""The topic with the places of all sinks of a cluster, unless a sink names another."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SERVERS: Final = re.compile(r"[^\s:,/]+:\d{1,5}(,[^\s:,/]+:\d{1,5})*")
_OWN_SETTINGS: Final = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "group.id",
        "isolation.level",
        "message.timeout.ms",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Settings of Kafka's client that decide whether rows come once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTarget:
    """Where rows go, and how."""

    topic: str
    servers: str
    value: str | None = None
    """The column with the value; None: all columns, as a JSON object."""
    key: str | None = None
    headers: str | None = None
    partition: str | None = None
    places: str = PLACES
    """The topic with the places."""
    settings: StorageOptions = field(default=StorageOptions(), repr=False, compare=False)
    """More settings of Kafka's client: how to log in, and the like. Shown nowhere."""

    @property
    def method(self) -> str:
        """The user's call."""
        return "sink_kafka"

    @property
    def where(self) -> str:
        """The topic as text."""
        return f"{self.topic} at {self.servers}"

    @property
    def beside(self) -> tuple[str, ...]:
        """Columns that are not part of a row as JSON."""
        return tuple(filter(None, (self.headers, self.partition)))


def kafka_target(call: str, target: KafkaTarget, settings: Mapping[str, str] | None) -> KafkaTarget:
    """The target that a user gave to a call; refuses what cannot be one."""
    texts: dict[str, object] = {
        "topic": target.topic,
        "bootstrap": target.servers,
        "places": target.places,
    }
    for name, given in texts.items():
        pattern = _SERVERS if name == "bootstrap" else _TOPIC
        if not isinstance(given, str) or not pattern.fullmatch(given):
            way = "'host:9092', more hosts after commas" if name == "bootstrap" else "a topic"
            raise UserError(f"{call}: {name} is {shown(given)}\n  to fix: give {way}")
    if target.places == target.topic:
        raise UserError(
            f"{call}: places would be in the topic of the rows\n"
            "  to fix: give places= another topic"
        )
    more = dict(settings or {})
    bad = sorted(name for name in more if name in _OWN_SETTINGS)
    if bad:
        raise UserError(
            f"{call}: settings has {bad[0]!r}, which decides whether rows come once\n"
            "  to fix: leave it out"
        )
    values: list[tuple[str, object]] = list(more.items())
    strange = [name for name, given in values if not isinstance(given, str)]
    if strange:
        raise UserError(
            f"{call}: setting {shown(strange[0])} is no text\n"
            "  to fix: give names and values as texts, as Kafka's client documents them"
        )
    return replace(target, settings=StorageOptions(tuple(more.items())))


def check_columns(call: str, schema: pa.Schema, target: KafkaTarget) -> None:
    """Refuse columns that are missing, or that cannot be what they are named for."""
    named = {
        "value": (target.value, _is_bytes, "binary or a text"),
        "key": (target.key, _is_bytes, "binary or a text"),
        "headers": (
            target.headers,
            _are_headers,
            "array<struct<key: string, value: binary>> or map<string, binary>",
        ),
        "partition": (target.partition, pt.is_integer, "a whole number"),
    }
    for role, (column, fits, expected) in named.items():
        if column is None:
            continue
        given: object = column
        if not isinstance(given, str) or given not in schema.names:
            raise UserError(
                f"{call}: there is no column {shown(column)} for {role}\n"
                f"  found: {existing(str(column), schema.names)}\n  to fix: give one of these"
            )
        kind = schema.field(column).type
        if not fits(kind):
            raise UserError(
                f"{call}: column {column!r} for {role} is {kind}\n"
                f"  expected: {expected}\n  to fix: cast it in a select()"
            )
    if target.value is None:
        message_rows.check(json_schema(schema, target))


def json_schema(schema: pa.Schema, target: KafkaTarget) -> pa.Schema:
    """The columns of a row as JSON."""
    return pa.schema([field for field in schema if field.name not in target.beside])


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def _are_headers(kind: pa.DataType) -> bool:
    if pt.is_map(kind):
        return kind.key_type == pa.string() and _is_bytes(kind.item_type)
    if not pt.is_list(kind) or not pt.is_struct(kind.value_type):
        return False
    members = {member.name: member.type for member in kind.value_type}
    return (
        set(members) == {"key", "value"}
        and members["key"] == pa.string()
        and _is_bytes(members["value"])
    )
