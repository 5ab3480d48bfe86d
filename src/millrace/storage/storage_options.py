"""`storage_options=`: how users' files in a bucket are reached, where the environment does not say.

Names are those of delta-rs, Polars and `object_store`, with or without their prefix. Invariant:
values are shown nowhere: not in a text, a fingerprint, a plan or a file. They pass from the driver
to its tasks in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import UserError
from millrace.text import did_you_mean

_PREFIXES: Final = ("aws_", "azure_storage_", "azure_", "google_")
_OTHER_NAMES: Final = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "default_region": "region",
    "endpoint": "endpoint_url",
    "skip_signature": "anonymous",
    "anon": "anonymous",
    "account": "account_name",
    "access_key": "account_key",
    "master_key": "account_key",
    "sas_key": "sas_token",
    "authority_id": "tenant_id",
    "bearer_token": "access_token",
    "oauth_token": "access_token",
    "allow_http": "",
    "s3_allow_unsafe_rename": "",
}
"""Other tools' names of an option; one without meaning here is taken and not used."""

KNOWN: Final = {
    "s3": (
        "access_key_id",
        "secret_access_key",
        "session_token",
        "region",
        "endpoint_url",
        "anonymous",
    ),
    "gs": ("access_token", "anonymous", "endpoint_url", "project_id"),
    "azure": (
        "account_name",
        "account_key",
        "sas_token",
        "client_id",
        "client_secret",
        "tenant_id",
        "endpoint_url",
    ),
    "hdfs": ("user", "kerb_ticket"),
}
_TRUE: Final = frozenset({"true", "1", "yes"})


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options by their names here. Its text has no value of them."""

    _values: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def get(self, name: str) -> str | None:
        """A value, if it was given."""
        return dict(self._values).get(name)

    def is_true(self, name: str) -> bool:
        """Whether an option is switched on."""
        return (self.get(name) or "").lower() in _TRUE

    def check(self, kind: str) -> None:
        """Refuse an option that this kind of store does not have."""
        for name, _ in self._values:
            if name not in KNOWN[kind]:
                known = ", ".join(KNOWN[kind])
                raise UserError(
                    f"storage_options has {name!r}, which files at {kind} do not have\n"
                    f"  found: known are {known}\n"
                    f"  to fix: {did_you_mean(name, KNOWN[kind], 'use one of these')}"
                )


def storage_options(given: Mapping[str, object] | None) -> StorageOptions:
    """The options that a user gave, under their names here."""
    if given is None:
        return StorageOptions()
    if not isinstance(given, Mapping):
        raise UserError(
            "storage_options is not a mapping of names and texts\n"
            f"  found: a {type(given).__name__}\n"
            '  to fix: give {"aws_region": "eu-central-1", ...}'
        )
    values: dict[str, str] = {}
    for name, value in given.items():
        plain = _plain_name(str(name))
        if not plain or value is None:
            continue
        if not isinstance(value, str | bool):
            raise UserError(
                f"storage_options[{str(name)!r}] is not a text\n"
                f"  found: a {type(value).__name__}\n  to fix: give a text"
            )
        values[plain] = str(value)
    return StorageOptions(tuple(sorted(values.items())))


def _plain_name(name: str) -> str:
    plain = name.lower()
    for prefix in _PREFIXES:
        if plain.startswith(prefix):
            plain = plain.removeprefix(prefix)
            break
    return _OTHER_NAMES.get(plain, plain)
