"""What the owner of journals answers, over Arrow Flight.

Invariant: no call is looked at before it has shown the workspace's token. A refusal travels as an
answer and is raised by the caller as the same kind of error. No call can name a file outside the
folder that files are adopted from.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl
import xxhash

from millrace.config import Config
from millrace.errors import BrokerStopped, MillraceError, UserError
from millrace.faults import fault
from millrace.journal.broker import Broker
from millrace.journal.core.values import Adopt, SegmentFile
from millrace.journal.row_files import check_direct_name
from millrace.metrics.process_metrics import OWNER_CALLS, OWNER_CALLS_NOW
from millrace.metrics.traces import span
from millrace.reads.live.live_reads import LiveReads
from millrace.storage import modes
from millrace.storage.local import sync_folder
from millrace.storage.store import storage_errors
from millrace.transport.flight import wire
from millrace.transport.flight.arrow_envelope import decode, encode, encode_refusal
from millrace.transport.flight.byte_batches import BYTES, byte_values
from millrace.transport.flight.guarded_server import (
    Admission,
    GuardedServer,
    ListenAddress,
    parent_of,
    unknown_call,
)
from millrace.transport.flight.wire import MessageLimit
from millrace.transport.owner.broker_calls import CALLS, Upload
from millrace.transport.streams.follow_server import LiveStreams
from millrace.version import __version__

PROTOCOL: Final = 6
PING: Final = "ping"
WORKSPACE_HEADER: Final = "x-millrace-workspace"
TOO_LARGE: Final = "send it in pieces, or store files and adopt them"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerIdentity:
    """The identity of an owner, and the token that callers must show."""

    workspace_id: str
    epoch: int
    instance: str
    token: str


class OwnerServer(GuardedServer):
    """Serves a broker. It listens as soon as it is made.

    `stopped` is called once the broker writes no more. `check_there` raises once the
    workspace was deleted.
    """

    def __init__(
        self,
        listen: ListenAddress,
        broker: Broker,
        *,
        identity: OwnerIdentity,
        config: Config,
        stopped: Callable[[], None] = lambda: None,
        check_there: Callable[[], object] = lambda: None,
    ) -> None:
        self._admission = Admission(
            identity.token,
            "no such workspace here, or not its token",
            optional={WORKSPACE_HEADER: identity.workspace_id},
        )
        super().__init__(
            "the owner", listen, self._admission, config=config, limit=request_limit(config)
        )
        self.broker = broker
        self.identity = identity
        self.written_at = time.monotonic()
        """When something was last written."""
        self._stopped = stopped
        self._check_there = check_there
        self._waits = threading.BoundedSemaphore(config.owner_waits_max)
        self._idle = threading.Condition()
        self._busy = 0
        self.live = LiveReads(broker, config)
        self._streams = LiveStreams(self.live)

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        """Answer a call."""
        if action.type == PING:
            return iter([self._pong()])
        parent = parent_of(context)
        return iter([self._answer(lambda: self._call(action.type, action.body, parent))])

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Send a follower its rows."""
        rows = self._streams.stream(context, pa.py_buffer(ticket.ticket))
        return fl.GeneratorStream(BYTES, rows)

    def do_put(
        self,
        _context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        """Take a whole file in that is to be adopted."""
        answer = self._answer(lambda: self._store(pa.py_buffer(descriptor.command), reader))
        # A caller that still sends would hear of a cut and not of the answer.
        with contextlib.suppress(StopIteration):
            while True:
                reader.read_chunk()
        writer.write(pa.py_buffer(answer))

    def end_calls(self, wait_ms: int) -> None:
        """Take on no more calls, end those that follow, and let those that may write finish."""
        with self._idle:
            self._admission.is_ending = True
            self.live.close()
            self._idle.wait_for(lambda: not self._busy, wait_ms / 1000)

    def _pong(self) -> bytes:
        own = self.identity
        about = {"workspace": own.workspace_id, "epoch": own.epoch, "instance": own.instance}
        return json.dumps({"protocol": PROTOCOL, "version": __version__, **about}).encode()

    def _answer(self, work: Callable[[], bytes]) -> bytes:
        """The answer, or a refusal that gives the caller the same kind of error."""
        try:
            self._check_there()
            return work()
        except BrokerStopped as error:
            self._stopped()
            return encode_refusal(error)
        except MillraceError as error:
            return encode_refusal(error)
        except fl.FlightUnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - goes to the caller
            return encode_refusal(
                MillraceError(
                    f"the owner of the journals failed: {error!r}\n"
                    "  to fix: look at the log of the owner, and ask again"
                )
            )

    def _call(self, name: str, body: pa.Buffer, parent: str | None) -> bytes:
        call = CALLS.get(name)
        if call is None:
            raise unknown_call(name, CALLS)
        self.limit.check(body.size, TOO_LARGE)
        args = call.decode_request(body)
        self._check_files(name, args)
        with OWNER_CALLS.timed(name), OWNER_CALLS_NOW.one_more():
            if call.rule.waits:
                answer = self._wait(name, args)
            elif call.rule.writes:
                # Reads are left out: workers ask again and again.
                traced = nullcontext() if parent is None else span(f"owner {name}", parent)
                with self._writing(), traced:
                    fault("owner.call.before")
                    answer = getattr(self.broker, name)(**args)
                    fault("owner.call.after")
            else:
                answer = self._read(name, args)
        return call.encode_answer(answer)

    def _read(self, name: str, args: Mapping[str, Any]) -> object:
        try:
            return getattr(self.broker, name)(**args)
        except Exception as error:
            if self._admission.is_ending:
                # The broker was closed meanwhile; the next owner can tell.
                raise fl.FlightUnavailableError(wire.ENDING) from error
            raise

    def _wait(self, name: str, args: dict[str, Any]) -> object:
        """Wait here for a short time, unless too many calls do; the client asks again."""
        most = self.config.owner_wait_ms_max / 1000
        may_wait = self._waits.acquire(blocking=False)
        args["timeout_s"] = min(args["timeout_s"], most) if may_wait else 0
        try:
            return getattr(self.broker, name)(**args)
        finally:
            if may_wait:
                self._waits.release()

    def _check_files(self, name: str, args: Mapping[str, Any]) -> None:
        files: list[SegmentFile] = []
        if name == "publish":
            adopts = [part for part in args["request"].parts if isinstance(part, Adopt)]
            files = [file for part in adopts for file in part.files]
        elif name == "adopt_stamped":
            files = [args["rows"].file]
        elif name == "adopt":
            files = [file for some in args["files"].values() for file in some]
        if not files:
            return
        folder, direct = self.broker.adoption_folder(), self.broker.direct_folder()
        for file in files:
            if not os.path.isabs(file.path):
                check_direct_name(file)
                # Such a name leads nowhere else unless it is a link.
                is_inside = direct is not None and not os.path.islink(f"{direct}/{file.path}")
            else:
                inside = os.path.realpath(folder) + os.sep
                is_inside = "\0" not in file.path and os.path.realpath(file.path).startswith(inside)
            if not is_inside:
                raise UserError(
                    f"file {file.path!r} cannot be adopted from where it lies\n"
                    f"  to fix: write it below {folder}, or use store_file"
                )

    def _store(self, command: pa.Buffer, reader: fl.MetadataRecordBatchReader) -> bytes:
        upload = decode(command, Upload, "a file to be adopted")
        file = upload.file
        if not reader.schema.equals(BYTES):
            raise UserError(
                f"not the bytes of a file: {str(reader.schema)[:80]!r}\n"
                "  to fix: use the same version of Millrace on both sides"
            )
        most = self.config.owner_file_bytes_max
        if not 0 <= file.bytes <= most:
            raise UserError(
                f"a file of {file.bytes} bytes is too large\n"
                f"  limit: {most} (owner_file_bytes_max)\n  to fix: store it as several"
            )
        path = os.path.join(self.broker.adoption_folder(), f"{secrets.token_hex(16)}.ipc")
        with self._writing():
            _receive(path, file.bytes, upload.checksum, reader)
        return encode(replace(file, path=path))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._idle:
            if self._admission.is_ending:
                raise fl.FlightUnavailableError(wire.ENDING)
            self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                self.written_at = time.monotonic()
                self._idle.notify_all()


def request_limit(config: Config) -> MessageLimit:
    """How large a call to an owner may be."""
    return MessageLimit("owner_request_bytes_max", config.owner_request_bytes_max)


def _receive(path: str, size: int, checksum: str, reader: fl.MetadataRecordBatchReader) -> None:
    """Write the bytes that come to a new file and make it durable; wrong ones leave none."""
    digest, got = xxhash.xxh3_64(), 0
    try:
        with storage_errors(f"writing {path}"):
            with open(path, "xb", opener=modes.opener) as out:
                for chunk in reader:
                    for data in byte_values(chunk.data):
                        got += data.size
                        if got > size:
                            break
                        digest.update(data)
                        out.write(data)
                out.flush()
                os.fsync(out.fileno())
            sync_folder(os.path.dirname(path))
        _check_arrived(f"{size} bytes, {checksum}", f"{got} bytes, {digest.hexdigest()}")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _check_arrived(expected: str, actual: str) -> None:
    if expected != actual:
        raise UserError(
            f"a file to adopt did not arrive as it was sent\n  expected: {expected}\n"
            f"  found: {actual}\n  to fix: store it again"
        )
