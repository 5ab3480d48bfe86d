"""`storage_options=`: how users' files in a bucket are reached, where the environment does not say.

Names are those of delta-rs, Polars and `object_store`, with or without their prefix. Invariant:
values are shown nowhere: not in a text, a fingerprint, a plan or a file. They pass from the driver
to its tasks in memory: what is pickled under `apart` has only the numbers of options, which travel
on a way of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

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

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values, or under `apart` a number in their place."""
        taken_out = _taken_out.get(None)
        if taken_out is None or not self._values:
            return StorageOptions, (self._values,)
        if self not in taken_out:
            taken_out.append(self)
        return _numbered, (taken_out.index(self),)

    def given(self) -> dict[str, str]:
        """All values, by their names."""
        return dict(self._values)

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


_taken_out: Final = ContextVar[list[StorageOptions] | None]("taken_out", default=None)
_put_back: Final = ContextVar[Sequence[StorageOptions]]("put_back", default=())


@contextmanager
def apart() -> Iterator[list[StorageOptions]]:
    """What is pickled meanwhile has no values of options; yields the list of those left out."""
    taken_out: list[StorageOptions] = []
    before = _taken_out.set(taken_out)
    try:
        yield taken_out
    finally:
        _taken_out.reset(before)


@contextmanager
def put_back(options: Sequence[StorageOptions]) -> Iterator[None]:
    """Unpickle what was pickled under `apart`, with the options that were left out."""
    before = _put_back.set(options)
    try:
        yield
    finally:
        _put_back.reset(before)


def _numbered(number: int) -> StorageOptions:
    """One of the options that were left out."""
    return _put_back.get(())[number]


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
