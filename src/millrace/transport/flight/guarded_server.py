"""The server side of every Flight service: the gate before it, admission, and errors on the wire.

Invariant: every call shows the token before anything else is read. The gate checks the first call
of a connection before Flight reads it; Flight checks each call.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import ssl
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from millrace.config import KIB, Config
from millrace.errors import MillraceError, UserError
from millrace.metrics.traces import HEADER
from millrace.storage.scratch import scratch_folder
from millrace.storage.tokens import checked_token
from millrace.transport.flight import wire
from millrace.transport.flight.gate import Gate, GuardedPort
from millrace.transport.flight.tls import Certificate
from millrace.transport.flight.wire import MessageLimit

ADMISSION: Final = "admission"
_FOLDER: Final = "millrace-gate-"
_SOCKET: Final = "flight"
_SOCKET_PATH_MAX: Final = 100
_AROUND_MESSAGE_BYTES: Final = 64 * KIB
"""What Flight puts around a call's body."""

AnyHeaders = Mapping[str, Sequence[Any]]
Answers = Callable[[fl.ServerCallContext, pa.Buffer], Iterable[bytes]]
"""Answers the question of an action, given its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Where a server listens; port 0 is any free one. With a certificate it speaks TLS."""

    host: str
    port: int = 0
    certificate: Certificate | None = None

    def url(self, port: int, host: str | None = None) -> str:
        """The address for clients, with the port that was found, and another host if given."""
        name = host or self.host
        scheme = "grpc" if self.certificate is None else "grpc+tls"
        return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


class Admission:
    """Admits calls that show the token and these headers."""

    def __init__(
        self,
        token: str,
        reason: str,
        *,
        required: Mapping[str, str] | None = None,
        optional: Mapping[str, str] | None = None,
    ) -> None:
        """`reason` is sent to the caller. An `optional` header may be missing, but not wrong."""
        self.reason = reason
        self.is_ending = False
        """Whether every further call is turned away."""
        token = checked_token(token, where="the token of this server")
        self._required = {wire.TOKEN_HEADER: f"Bearer {token}", **(required or {})}
        self._optional = dict(optional or {})

    def refusal(self, headers: AnyHeaders) -> str | None:
        """Why a call with these headers is not admitted; None if it is."""
        # All are compared, each in the same time for every token.
        are_right = [same(only(headers, name), value) for name, value in self._required.items()]
        are_right += [only(headers, name) in ("", value) for name, value in self._optional.items()]
        return None if all(are_right) else self.reason

    def on_call(self, headers: AnyHeaders) -> fl.ServerMiddleware | None:
        """A call that was admitted is about to begin."""
        if self.is_ending:
            raise fl.FlightUnavailableError(wire.ENDING)
        parent = only(headers, HEADER)
        return TracedCall(parent) if parent else None


class TracedCall(fl.ServerMiddleware):  # type: ignore[misc]
    """A call that belongs to a trace of the caller's."""

    def __init__(self, parent: str) -> None:
        super().__init__()
        self.parent = parent


def parent_of(context: fl.ServerCallContext) -> str | None:
    """The caller's span, if the call belongs to a trace."""
    traced = context.get_middleware(ADMISSION)
    return traced.parent if isinstance(traced, TracedCall) else None


class GuardedServer(fl.FlightServerBase):  # type: ignore[misc]
    """A Flight server behind a gate. It listens as soon as it is made.

    Subclasses answer actions through `actions`, and override `do_get` and the like.
    """

    actions: Mapping[str, Answers] = {}

    def __init__(
        self,
        who: str,
        listen: ListenAddress,
        admission: Admission,
        *,
        config: Config,
        limit: MessageLimit,
    ) -> None:
        """`who` is the server's name in errors."""
        self.listen = listen
        self.config = config
        self.limit = limit
        self._ending = ExitStack()
        try:
            folder = self._ending.enter_context(scratch_folder(_parent(), _FOLDER))
            path = os.path.join(folder, _SOCKET)
            certificate = listen.certificate
            behind = GuardedPort(
                flight=path,
                refusal=admission.refusal,
                message_bytes_max=limit.bytes_max + _AROUND_MESSAGE_BYTES,
                tls=None if certificate is None else _context(certificate, folder),
            )
            super().__init__(f"grpc+unix://{path}", middleware={ADMISSION: _EveryCall(admission)})
            self._ending.callback(super().shutdown)
            self._gate = Gate(listen.host, listen.port, behind, config)
        except (pa.ArrowException, OSError) as error:
            self._ending.close()
            raise UserError(
                f"{who} cannot listen on {listen.host}:{listen.port}: {error}\n"
                "  to fix: give an address of its host (MILLRACE_AGENT_HOST, --host); if the port\n"
                "  is taken, choose another port, or none for any free one"
            ) from error
        except BaseException:
            self._ending.close()
            raise

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._gate.port

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.listen.url(self.port)

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        """Answer a question."""
        with errors_sent():
            answer = self.actions.get(action.type)
            if answer is None:
                raise unknown_call(action.type, self.actions)
            self.limit.check(action.body.size)
            return iter(list(answer(context, action.body)))

    def shutdown(self) -> None:
        """Listen no more, let calls end, and close connections."""
        self._gate.close()
        self._ending.close()
        self._gate.cut()


@contextmanager
def errors_sent() -> Iterator[None]:
    """Send an error of the block so that the client raises the same kind of error."""
    try:
        yield
    except MillraceError as error:
        raise fl.FlightServerError("refused", extra_info=wire.encode_error(error)) from error


def unknown_call(name: str, known: Iterable[str]) -> UserError:
    """Word the refusal of a call that a server does not know."""
    return UserError(
        f"unknown call {name[:80]!r}\n  known: {', '.join(sorted(known))}\n"
        "  to fix: use the same version of Millrace on both sides"
    )


class _EveryCall(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks every call, also those on a connection that was admitted."""

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
    """The parent folder of Flight's own socket: a socket's path must be short."""
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
