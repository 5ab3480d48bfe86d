"""What all Flight servers have in common: the gate before them, and who is let in.

Invariant: no call is looked at before it has shown the token: the first of a connection by the
gate, before Flight reads it, and each by Flight.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow.flight as fl

from millrace.config import KIB, Config
from millrace.storage.scratch import scratch_folder
from millrace.storage.tokens import checked_token
from millrace.transport.flight import wire
from millrace.transport.flight.gate import Gate, GuardedPort
from millrace.transport.flight.tls import Certificate

ADMISSION: Final = "admission"
_FOLDER: Final = "millrace-gate-"
_SOCKET: Final = "flight"
_SOCKET_PATH_MAX: Final = 100
_AROUND_MESSAGE_BYTES: Final = 64 * KIB
"""What Flight puts around a call's body."""

AnyHeaders = Mapping[str, Sequence[Any]]


class Admission:
    """Lets in calls that show these values, each in a header of its own."""

    def __init__(self, token: str, shown: Mapping[str, str], refusal: str) -> None:
        self.reason = refusal
        token = checked_token(token, where="the token of this server")
        self._shown = {wire.TOKEN_HEADER: f"Bearer {token}", **shown}

    def refusal(self, headers: AnyHeaders) -> str | None:
        """Why a call with these headers is not let in; None if it is."""
        # All are compared, each in the same time whatever is shown.
        are_right = [same(only(headers, name), value) for name, value in self._shown.items()]
        return None if all(are_right) else self.reason

    def on_call(self, headers: AnyHeaders) -> fl.ServerMiddleware | None:
        """A call that was let in is about to begin."""


class GuardedServer(fl.FlightServerBase):  # type: ignore[misc]
    """A Flight server behind a gate. It listens as soon as it is made."""

    def __init__(
        self,
        location: str,
        admission: Admission,
        *,
        config: Config,
        message_bytes_max: int,
        certificate: Certificate | None = None,
    ) -> None:
        where = urlsplit(location)
        self._ending = ExitStack()
        try:
            folder = self._ending.enter_context(scratch_folder(_parent(), _FOLDER))
            path = os.path.join(folder, _SOCKET)
            behind = GuardedPort(
                flight=path,
                refusal=admission.refusal,
                message_bytes_max=message_bytes_max + _AROUND_MESSAGE_BYTES,
                tls=None if certificate is None else _context(certificate, folder),
            )
            super().__init__(f"grpc+unix://{path}", middleware={ADMISSION: _EveryCall(admission)})
            self._ending.callback(super().shutdown)
            self._gate = Gate(where.hostname or "", where.port or 0, behind, config)
        except BaseException:
            self._ending.close()
            raise

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._gate.port

    def shutdown(self) -> None:
        """Listen no more, let calls end, and close connections."""
        self._gate.close()
        self._ending.close()
        self._gate.cut()


class _EveryCall(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Looks at every call, also those on a connection that was let in."""

    def __init__(self, admission: Admission) -> None:
        super().__init__()
        self._admission = admission

    def start_call(
        self, _info: fl.CallInfo, headers: dict[str, list[Any]]
    ) -> fl.ServerMiddleware | None:
        """Admit the call or refuse it."""
        reason = self._admission.refusal(headers)
        if reason is not None:
            raise fl.FlightUnauthenticatedError(reason)
        return self._admission.on_call(headers)


def same(shown: str, right: str) -> bool:
    """Whether two secrets are the same, in a time that says nothing about them."""
    return hmac.compare_digest(shown.encode(), right.encode())


def only(headers: AnyHeaders, name: str) -> str:
    """The value of a header that is there once; empty if it is not."""
    values = headers.get(name, [])
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""


def _parent() -> str:
    """Where the folder of Flight's own socket lies: a socket's path must be short."""
    folder = tempfile.gettempdir()
    return folder if len(folder) + 2 * len(_FOLDER) < _SOCKET_PATH_MAX else "/tmp"  # noqa: S108


def _context(certificate: Certificate, folder: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    path = os.path.join(folder, "certificate")
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(certificate.chain + b"\n" + certificate.key)
        context.load_cert_chain(path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return context
