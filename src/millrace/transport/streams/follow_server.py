"""The owner's half of live reads over Flight.

Invariant: a stream that ends, even by an error, leaves its rings; no more than so many run at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as fl

from millrace.errors import BrokerStopped, MillraceError, Retriable
from millrace.faults import fault
from millrace.metrics.process_metrics import SENT_BYTES, STREAMS_NOW
from millrace.reads.live.follower import messages
from millrace.reads.live.live_reads import LiveClosed, LiveReads
from millrace.transport.flight import wire
from millrace.transport.streams.follow_messages import decode_request, encode_error, encode_message


class LiveStreams:
    """Serves followers in other processes."""

    def __init__(self, live: LiveReads) -> None:
        self.live = live
        self._free = threading.BoundedSemaphore(live.config.live_streams_max)

    def stream(self, context: fl.ServerCallContext, ticket: pa.Buffer) -> Iterator[pa.RecordBatch]:
        """The messages for one follower."""
        # Taken here and not before: a stream that is never begun would never give it back.
        if not self._free.acquire(blocking=False):
            yield encode_error(self._too_many())
            return
        try:
            request = decode_request(ticket)
            with STREAMS_NOW.one_more("owner"):
                for message in messages(self.live, request, is_cancelled=context.is_cancelled):
                    sent = encode_message(message)
                    yield sent
                    SENT_BYTES.add(sent.nbytes, "owner")
                    fault("live.stream.after_message")
        except LiveClosed as error:
            raise fl.FlightUnavailableError(wire.ENDING) from error
        except BrokerStopped as error:
            # The next owner can go on with it.
            raise fl.FlightUnavailableError(str(error)[:300]) from error
        except MillraceError as error:
            yield encode_error(error)
        finally:
            self._free.release()

    def _too_many(self) -> MillraceError:
        most = self.live.config.live_streams_max
        return Retriable(
            f"the owner serves {most} followers already\n  limit: live_streams_max\n"
            "  to fix: end some, or ask again later"
        )
