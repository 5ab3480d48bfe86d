"""The address of a database. Invariant: its password is shown nowhere and written nowhere.

It passes from the driver to its tasks as storage options do, apart from what Spark may write down.
Where an address has none, libpq looks for one as it does for any program: `PGPASSWORD`, a passfile,
a service file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from millrace.errors import UserError
from millrace.storage.storage_options import StorageOptions

Password = str | Callable[[], str]
"""A password, or what gives the current one when a connection is made."""

SCHEMES: Final = ("postgresql", "postgres")
_SECRETS: Final = frozenset({"password", "sslpassword"})
_WAYS: Final = "'postgresql://user@host:5432/database'"
_QUIET_S: Final = 10
"""A server that is silent so long while a connection is made does not answer."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Where a database is, and how to get in."""

    url: str
    """Without passwords."""
    _secrets: StorageOptions = field(default=StorageOptions(), repr=False, compare=False)
    """Secret parameters, by libpq's names."""
    _password: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    def for_libpq(self, application: str = "millrace", *, quiet_ms_max: int = 60_000) -> str:
        """The address that a connection is made with. Not to be shown."""
        parts = urlsplit(self.url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        more = {
            "application_name": application,
            "connect_timeout": str(_QUIET_S),
            "tcp_user_timeout": str(quiet_ms_max),
        } | given
        secrets = self._known()
        if self._password is not None:
            secrets["password"] = self._password()
        query = urlencode(more | secrets, quote_via=quote)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))

    def without_secrets(self, text: str) -> str:
        """A text of others with nothing in it that must not be shown."""
        for secret in self._known().values():
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
        return text

    def _known(self) -> dict[str, str]:
        given = {name: self._secrets.get(name) for name in _SECRETS}
        return {name: secret for name, secret in given.items() if secret}

    def __str__(self) -> str:
        return self.url


def database_address(call: str, url: object, password: Password | None) -> DatabaseAddress:
    """The address that a user gave to a call."""
    if not isinstance(url, str) or not url.strip():
        raise UserError(
            f"{call}: the address is a {type(url).__name__}\n  to fix: give {_WAYS}, as a text"
        )
    scheme = url.partition(":")[0].lower()
    if scheme == "jdbc":
        raise UserError(
            f"{call}: the address is one for JDBC\n  found: it begins with jdbc:\n"
            f"  to fix: give libpq's, {_WAYS}"
        )
    if scheme not in SCHEMES or "://" not in url:
        raise UserError(
            f"{call}: the address is not one of PostgreSQL\n"
            "  found: it does not begin with postgresql:// (it is not shown: it may hold a "
            f"password)\n  to fix: give {_WAYS}"
        )
    if password is not None and not isinstance(password, str) and not callable(password):
        raise UserError(
            f"{call}: password is a {type(password).__name__}\n"
            "  to fix: give a text or a function that returns one, or leave it out: then libpq "
            "looks in PGPASSWORD and ~/.pgpass"
        )
    parts = urlsplit(url)
    who, at, hosts = parts.netloc.rpartition("@")
    user, colon, own = who.partition(":")
    if any(_is_no_host(host) for host in hosts.split(",")) or "@" in parts.path + parts.query:
        raise UserError(
            f"{call}: the address cannot be read\n"
            "  found: a host, port or database with signs that these do not have (it is not "
            "shown: it may hold a password)\n"
            "  to fix: write such signs of a password as %40, %2F, %3A, or give password="
        )
    query = parse_qsl(parts.query, keep_blank_values=True)
    plain = urlencode([pair for pair in query if pair[0] not in _SECRETS], quote_via=quote)
    secrets = dict(pair for pair in query if pair[0] in _SECRETS)
    if colon:
        secrets["password"] = unquote(own)
    shown = urlunsplit(("postgresql", f"{user}{at}{hosts}", parts.path, plain, ""))
    if isinstance(password, str):
        secrets["password"] = password
    options = StorageOptions(tuple(sorted(secrets.items())))
    return DatabaseAddress(shown, options, password if callable(password) else None)


def _is_no_host(text: str) -> bool:
    host, _, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not host and not text.startswith(":"):
        host, port = text, ""
    return not (port == "" or port.isdecimal()) or any(sign in host for sign in "/?# ")
