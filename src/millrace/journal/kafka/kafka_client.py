"""The Kafka client: addresses, settings, and Kafka's errors in our words."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import BrokerStopped, KafkaUnreachable, MillraceError, StorageError, UserError
from millrace.limits import MIB
from millrace.storage import modes
from millrace.storage.store import storage_errors

KAFKA_READ_AHEAD_BYTES: Final = 4 * MIB
"""How much a reader fetches ahead."""

KAFKA_TRANSACTION_MS_MAX: Final = 60_000
"""How long a transaction may take from its first row to its end."""

SCHEME: Final = "kafka://"
NAME_FILE: Final = "kafka.name"
SETTINGS_VARIABLE: Final = "MILLRACE_KAFKA_SETTINGS"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_HOST: Final = re.compile(r"[^\s:,/]+:\d{1,5}")
_FENCED: Final = {
    KafkaError._FENCED,  # noqa: SLF001 - the name the client gives it
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
_FULL: Final = {KafkaError.KAFKA_STORAGE_ERROR}

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where a cluster is, and the name that sets one workspace's topics apart."""

    servers: str
    name: str | None = None

    @classmethod
    def parse(cls, url: str) -> KafkaAddress:
        """From `kafka://host:port[,host:port...][/name]`."""
        rest = url.removeprefix(SCHEME)
        servers, slash, name = rest.partition("/")
        is_bad = not url.startswith(SCHEME) or not all(
            _HOST.fullmatch(server) for server in servers.split(",")
        )
        if is_bad or (slash and not _NAME.fullmatch(name)):
            raise UserError(
                f"{url!r} is no address of a Kafka cluster\n"
                "  to fix: give kafka://host:port, more hosts after commas, and if you like a "
                "name for the topics: kafka://host:port/name (letters, digits, _ and -)"
            )
        return cls(servers, name or None)


def name_in(folder: str) -> str:
    """The name that a workspace gave itself, kept in its folder; made at the first call."""
    path = os.path.join(folder, NAME_FILE)
    with storage_errors(f"opening {path}"):
        if not os.path.exists(path):
            fresh = f"{path}.{secrets.token_hex(4)}"
            with open(fresh, "x", encoding="ascii", opener=modes.opener) as file:
                file.write(secrets.token_hex(8))
                file.flush()
                os.fsync(file.fileno())
            os.rename(fresh, path)
        with open(path, encoding="ascii") as file:
            name = file.read().strip()
    if not _NAME.fullmatch(name):
        raise UserError(f"{path} holds no name: {name!r}\n  to fix: bring back what it held")
    return name


def given_settings(environment: Mapping[str, str]) -> Settings:
    """Settings of a file that a variable names: how to log in, and the like, `name=value` each."""
    path = environment.get(SETTINGS_VARIABLE)
    if not path:
        return {}
    with storage_errors(f"reading {path} ({SETTINGS_VARIABLE})"), open(path, "rb") as file:
        lines = file.read().decode("utf-8").splitlines()
    pairs = [line.split("=", 1) for line in map(str.strip, lines) if line and line[0] != "#"]
    bad = next((pair[0] for pair in pairs if len(pair) == 1), None)
    if bad is not None:
        raise UserError(f"{path} has a line {bad!r}\n  to fix: write name=value on each line")
    return {name.strip(): value.strip() for name, value in pairs}


def common(servers: str, config: Config) -> Settings:
    """Settings of every client."""
    return {
        **given_settings(os.environ),
        "bootstrap.servers": servers,
        "client.id": "millrace",
        "log_level": 0,
        "logger": _SILENT,
        "socket.connection.setup.timeout.ms": max(1000, min(10_000, call_ms(config))),
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.fast.interval.ms": 50,
        "allow.auto.create.topics": False,
        "message.max.bytes": config.kafka_message_bytes_max,
        # What the callbacks would say, the calls say as well.
        "error_cb": lambda _: None,
    }


def producing(servers: str, transactional_id: str, config: Config) -> Settings:
    """Settings of the one producer of a broker: idempotent, transactional, acknowledged by all."""
    call = call_ms(config)
    limit = max(call, KAFKA_TRANSACTION_MS_MAX)
    return {
        **common(servers, config),
        "transactional.id": transactional_id,
        "enable.idempotence": True,
        "acks": "all",
        "transaction.timeout.ms": limit,
        "message.timeout.ms": limit,
        "linger.ms": 5,
        "compression.type": "none",
        "queue.buffering.max.kbytes": 2 * config.journal_append_bytes_max // 1024,
        "retry.backoff.ms": 20,
    }


def consuming(servers: str, group: str, config: Config) -> Settings:
    """Settings of a reader that sees committed transactions alone and commits nothing itself."""
    return {
        **common(servers, config),
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
        # A reader that waits at the end holds up the next fetch of another topic for this long.
        "fetch.wait.max.ms": 20,
        "fetch.error.backoff.ms": 20,
        "fetch.message.max.bytes": config.kafka_message_bytes_max,
        "fetch.max.bytes": 2 * config.kafka_message_bytes_max,
        "receive.message.max.bytes": 4 * config.kafka_message_bytes_max,
        "queued.max.messages.kbytes": max(1, KAFKA_READ_AHEAD_BYTES // 1024),
        "queued.min.messages": 100_000,
    }


def admin(servers: str, config: Config, more: Mapping[str, str] | None = None) -> AdminClient:
    """A client that makes and deletes topics."""
    return AdminClient(common(servers, config) | dict(more or {}))


@contextlib.contextmanager
def reported(doing: str, servers: str, config: Config) -> Iterator[None]:
    """Turn Kafka's errors into ours."""
    try:
        yield
    except KafkaException as error:
        raise translated(error, doing, servers, config) from error


def translated(error: KafkaException, doing: str, servers: str, config: Config) -> MillraceError:
    """An error of Kafka's in our words."""
    cause = error.args[0]
    if cause.code() in _FENCED:
        return BrokerStopped(
            f"another process took these journals over while {doing}\n"
            f"  found: {cause.str()}\n  to fix: join the new owner"
        )
    if cause.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
        return UserError(
            f"a row is too large for Kafka, while {doing}\n"
            f"  limit: {config.kafka_message_bytes_max} bytes (kafka_message_bytes_max)\n"
            "  to fix: keep large values in files, or raise it here and in the cluster"
        )
    if cause.code() in _FULL:
        return StorageError(
            f"Kafka's disk said no while {doing}\n  found: {cause.str()}\n"
            "  to fix: make room on the disk of the Kafka broker, then ask again"
        )
    return unanswered(doing, servers, config, f"{cause.name()}: {cause.str()}")


def call_ms(config: Config) -> int:
    """How long a call waits for the cluster."""
    return config.peer_ms(ms(config.kafka_timeout))


def unanswered(
    doing: str, servers: str, config: Config, trouble: str = "no answer"
) -> KafkaUnreachable:
    """Word the error for a cluster that does not do its part in time."""
    is_own = ms(config.kafka_timeout) <= ms(config.gone_after)
    limit = "kafka_timeout" if is_own else "gone_after"
    return KafkaUnreachable(
        f"Kafka at {servers} did not do its part while {doing}\n  found: {trouble}\n"
        f"  waited at most {call_ms(config)} ms ({limit})\n"
        "  to fix: see whether it runs, and run this again: it goes on from where it stopped"
    )


class _Silent:
    """Takes the client's log lines; what matters comes back from the calls."""

    def log(self, *_: object, **__: object) -> None:
        pass


_SILENT: Final = _Silent()
