"""Map outputs in folders of other hosts, fetched from their agents.

Invariant: bytes are returned only after length and checksum were checked. A fetch that is cut
resumes at the byte it reached, a limited number of times; then it is an error that names the agent.
Missing bytes are never taken for empty.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import xxhash

from millrace.config import Config
from millrace.durations import ms
from millrace.errors import AgentUnreachable, MillraceError, Retriable, UserError
from millrace.ids import LATEST, Attempt, AttemptId, FolderId, Latest, MapTaskId
from millrace.shuffle import reader
from millrace.shuffle.fetch_counts import FetchCounts
from millrace.shuffle.index import MapTaskIndex, decode_json
from millrace.shuffle.partition_entries import PartitionMeta
from millrace.text import human_bytes
from millrace.transport.agent import agent_messages
from millrace.transport.agent.agent_addresses import AddressOf
from millrace.transport.agent.agent_calls import AgentCalls
from millrace.transport.agent.agent_messages import (
    AgentPong,
    ByteRange,
    KeptRuns,
    RemovedOutputs,
    Search,
    Ticket,
    WhichAttempt,
)
from millrace.transport.agent.host_fetches import Delivery, HostFetches, PartitionRequest
from millrace.transport.agent.landing import Landing, landing
from millrace.transport.flight.flight_calls import CallCut, CallRefused

Answer = TypeVar("Answer")
_LOG: Final = logging.getLogger(__name__)
_SEARCHES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """A partition on its way."""

    attempt: AttemptId
    meta: PartitionMeta
    landing: Landing
    digest: Any

    @property
    def left(self) -> int:
        """Bytes still missing."""
        return self.meta.bytes - self.landing.got

    def range(self) -> ByteRange:
        """The request for the missing bytes."""
        which = WhichAttempt(self.attempt.task, self.attempt.attempt)
        return ByteRange(which, self.meta.reduce_partition, self.landing.got)

    def take(self, chunk: pa.Buffer) -> None:
        """Take the next bytes, and look at them while they are at hand."""
        self.landing.take(chunk)
        self.digest.update(memoryview(chunk))

    def finish(self, folder: FolderId) -> pa.Buffer:
        """The bytes, found right."""
        if self.meta.file is not None:
            where = f"map output {self.attempt} in folder {folder}"
            checksum = str(self.digest.hexdigest())
            reader.check_content(self.landing.got, checksum, self.meta, where=where)
        return self.landing.finish()


class Agents:
    """The agents of a workspace. Implements `shuffle.handle.Remote`; may be used by many threads.

    `address_of` is asked again before each try, as an agent may have come back elsewhere.
    """

    def __init__(
        self,
        *,
        token: str,
        config: Config,
        address_of: AddressOf,
        roots: bytes | None = None,
        temporary_folder: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = config
        self.calls = AgentCalls(token=token, config=config, roots=roots)
        self._address_of = address_of
        self._temporary_folder = temporary_folder
        self._sleep = sleep
        self._counts, self._counting = FetchCounts(), threading.Lock()

    @property
    def counts(self) -> FetchCounts:
        """What was fetched so far."""
        return self._counts

    def index(self, folder: FolderId, attempt: AttemptId) -> MapTaskIndex:
        """The index of an attempt."""
        return self._index(folder, attempt.task, attempt.attempt)

    def latest(self, folder: FolderId, task: MapTaskId) -> MapTaskIndex:
        """The index of a map task's highest finished attempt there."""
        return self._index(folder, task, LATEST)

    def find(
        self, folder: FolderId, made_from: Sequence[Mapping[str, Any]], *, verify: bool = False
    ) -> list[MapTaskIndex | None]:
        """For each piece of work an attempt there that did it, or None."""
        indexes: list[MapTaskIndex | None] = []
        for part in _parts(made_from, self.config.agent_request_bytes_max):
            body = agent_messages.encode_search(Search(made_from=tuple(part), verify=verify))
            answers = self._ask(folder, agent_messages.FIND, body)
            where = f"an index from folder {folder}"
            indexes += [decode_json(data, where=where) if data else None for data in answers]
        return indexes

    def ping(self, folder: FolderId) -> AgentPong:
        """Ask the agent of a folder for its identity."""
        (answer,) = self._ask(folder, agent_messages.PING)
        return agent_messages.decode_pong(answer)

    def is_there(self, folder: FolderId) -> bool:
        """Whether the agent of a folder answers soon: asked before what can be done without it."""
        limit_ms = self.config.peer_ms(self.config.agent_answer_ms_max)
        ask = partial(self.calls.ask, timeout_ms=limit_ms)
        try:
            self._try(
                folder,
                lambda address: ask(address, folder, agent_messages.PING),
                doing="looking for it",
                limit_ms=limit_ms,
            )
        except AgentUnreachable:
            return False
        except UserError:
            return True  # It refuses this token: the answer to the next question says what to do.
        return True

    def renew(self, folder: FolderId) -> bool:
        """Renew the lease of a folder's agent. Tried once; returns whether it answered."""
        address = self._address_of(folder)
        if address is None:
            return False
        try:
            self.calls.ask(address, folder, agent_messages.RENEW)
        except (CallCut, CallRefused):
            return False
        return True

    def keep_only(self, folder: FolderId, kept: KeptRuns) -> RemovedOutputs | None:
        """Let a host remove what the workspace no longer has. Tried once; None if it cannot now."""
        address = self._address_of(folder)
        body = agent_messages.encode_kept(kept)
        if address is None or len(body) > self.config.agent_request_bytes_max:
            return None
        try:
            (answer,) = self.calls.ask(address, folder, agent_messages.KEEP, body)
        except (CallCut, CallRefused, MillraceError) as error:
            _LOG.info("folder %s was not cleaned: %s", folder, error)
            return None
        return agent_messages.decode_removed(answer)

    def fetch(self, folder: FolderId, attempt: AttemptId, meta: PartitionMeta) -> pa.Buffer:
        """The bytes of a partition, found right."""
        (data,) = self.fetch_all([(folder, attempt, meta)])
        return data

    def fetch_all(self, requests: Iterable[PartitionRequest]) -> Iterator[pa.Buffer]:
        """The checked bytes of many partitions, in the order of the requests.

        Several hosts are asked at once, and ahead of the reader as far as memory allows. Ranges in
        one folder are fetched together: a call alone takes longer than to send a small range.
        """
        config = self.config
        return HostFetches(
            requests,
            self._fetch_group,
            lambda seconds: self._count(FetchCounts(waits=1, waited_s=seconds)),
            lambda size: self._count(FetchCounts(queued_bytes_max=size)),
            hosts_at_once=config.fetch_hosts_at_once,
            bytes_max=config.fetch_memory_bytes_max,
            ranges_max=config.fetch_ranges_max,
        ).buffers()

    def close(self) -> None:
        """Close connections."""
        self.calls.close()

    def _index(self, folder: FolderId, task: MapTaskId, attempt: Attempt | Latest) -> MapTaskIndex:
        (answer,) = self._ask(
            folder, agent_messages.INDEX, agent_messages.encode_which(WhichAttempt(task, attempt))
        )
        return decode_json(answer, where=f"an index from folder {folder}")

    def _ask(self, folder: FolderId, action: str, body: bytes = b"") -> list[bytes]:
        return self._try(
            folder,
            lambda address: self.calls.ask(address, folder, action, body),
            doing=f"asking for {action}",
        )

    def _fetch_group(
        self, folder: FolderId, group: Sequence[PartitionRequest], delivery: Delivery
    ) -> None:
        landings = [self._landing(meta) for _, _, meta in group]
        parts = [
            FetchedPartition(attempt, meta, landing_, xxhash.xxh3_64())
            for (_, attempt, meta), landing_ in zip(group, landings, strict=True)
        ]
        left = dict(enumerate(parts))
        self._try(
            folder,
            lambda address: self._go_on(address, folder, left, delivery),
            doing=f"fetching {len(parts)} partitions",
            got=lambda: sum(landing_.got for landing_ in landings),
        )

    def _landing(self, meta: PartitionMeta) -> Landing:
        return landing(
            meta.bytes,
            memory_bytes_max=self.config.fetch_memory_bytes_max,
            folder=self._temporary_folder,
        )

    def _go_on(
        self,
        address: str,
        folder: FolderId,
        left: dict[int, FetchedPartition],
        delivery: Delivery,
    ) -> None:
        """Fetch what is still missing, and deliver each range as soon as it is whole."""
        for position in [n for n, part in left.items() if not part.left]:
            delivery.deliver(position, left.pop(position).finish(folder))
        if not left:
            return
        ticket = Ticket(
            tuple(part.range() for part in left.values()), self.config.fetch_chunk_bytes
        )
        size = sum(part.left for part in left.values())
        self._count(FetchCounts(calls=1))
        with closing(self.calls.chunks(address, folder, ticket, bytes_left=size)) as chunks:
            for position, part in list(left.items()):
                while part.left:
                    delivery.check()
                    chunk = next(chunks, None)
                    if chunk is None:
                        raise CallCut("the stream ended early")
                    part.take(chunk)
                data = left.pop(position).finish(folder)
                self._count(FetchCounts(bytes=data.size, ranges=1, hosts=(folder,)))
                delivery.deliver(position, data)

    def _count(self, more: FetchCounts) -> None:
        with self._counting:
            self._counts += more

    def _try(
        self,
        folder: FolderId,
        call: Callable[[str], Answer],
        *,
        doing: str,
        got: Callable[[], int] = lambda: 0,
        limit_ms: int | None = None,
    ) -> Answer:
        """Call, and call again when cut, waiting twice as long each time.

        An agent that was silent for as long as `gone_after`, or this limit, is not asked again.
        """
        silent_ms = ms(self.config.gone_after) if limit_ms is None else limit_ms
        address, reason = None, "no address is known"
        began, got_before, tries = time.monotonic(), got(), 0
        for number in range(self.config.fetch_retries_max + 1):
            if got() > got_before:
                began, got_before = time.monotonic(), got()
            if number and time.monotonic() - began >= silent_ms / 1000:
                break
            if number:
                self._sleep(self.config.fetch_backoff_ms * 2 ** (number - 1) / 1000)
            tries += 1
            address = self._address_of(folder) or address
            if address is None:
                continue
            try:
                return call(address)
            except (CallCut, Retriable) as cut:
                reason = str(cut)
                _LOG.info("%s in folder %s was cut (try %d): %s", doing, folder, tries, reason)
            except CallRefused as refused:
                raise UserError(
                    f"the agent at {address} refuses folder {folder} or this workspace's token\n"
                    "  to fix: open the workspace that wrote the folder; with agents run with\n"
                    "  --token-file, put that token into MILLRACE_TOKEN"
                ) from refused
        raise AgentUnreachable(
            f"the agent at {address} does not answer: {doing} in folder {folder}\n"
            f"  found, after {tries} tries: {reason}\n"
            f"  got: {got()} bytes ({human_bytes(got())})\n"
            "  to fix: see that the host runs and can be reached; an agent is started again by\n"
            "  the next task there, or run `millrace agent` on the host; then run this again: it\n"
            "  goes on from where it stopped"
        )


def _parts(
    made_from: Sequence[Mapping[str, Any]], bytes_max: int
) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Questions short enough for an agent to read."""
    part: list[Mapping[str, Any]] = []
    part_bytes = 0
    for entry in made_from:
        entry_bytes = len(agent_messages.encode_search(Search(made_from=(entry,), verify=False)))
        if part and (len(part) >= _SEARCHES_MAX or part_bytes + entry_bytes > bytes_max // 2):
            yield part
            part, part_bytes = [], 0
        part.append(entry)
        part_bytes += entry_bytes
    if part:
        yield part
