"""Certificates, given as files: by name, or by the environment of each host.

MILLRACE_TLS_CERT and MILLRACE_TLS_KEY make a host's agent answer over TLS; MILLRACE_TLS_CA names
the certificates that clients trust, instead of the system's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import UserError

CERT_VARIABLE: Final = "MILLRACE_TLS_CERT"
KEY_VARIABLE: Final = "MILLRACE_TLS_KEY"
CA_VARIABLE: Final = "MILLRACE_TLS_CA"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server shows, and the key that proves it. Both PEM."""

    chain: bytes
    key: bytes = field(repr=False)


def certificate(chain_path: str | None, key_path: str | None) -> Certificate | None:
    """Read a certificate and its key; None if neither is given."""
    if not chain_path and not key_path:
        return None
    if not chain_path or not key_path:
        missing = "key" if chain_path else "certificate"
        raise UserError(f"TLS needs a certificate and its key\n  to fix: give the {missing} too")
    return Certificate(_read(chain_path), _read(key_path))


def own_certificate(environ: Mapping[str, str]) -> Certificate | None:
    """The certificate that this host's agents show; None for no TLS."""
    return certificate(environ.get(CERT_VARIABLE), environ.get(KEY_VARIABLE))


def trusted_roots(environ: Mapping[str, str]) -> bytes | None:
    """The certificates that clients here trust; None for the system's."""
    path = environ.get(CA_VARIABLE)
    return None if not path else _read(path)


def _read(path: str) -> bytes:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return file.read()
    except OSError as error:
        raise UserError(
            f"TLS file {path} cannot be read: {error}\n  to fix: give a file that can be read"
        ) from error
