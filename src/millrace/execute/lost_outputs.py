"""Map outputs of earlier stages that are gone or damaged, and how they are made again.

A task that cannot read an output reports the loss and does not fail. All other tasks go on, so one
round finds everything that is lost. Then the query begins again: finished tasks are reused, and
only the lost outputs are made again, and the tasks that read them if their rows differ now.

Invariant: a lost output is made again once, or a few times if its host went away, since the next
host may go away as well. If it is lost again after that, the query fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from millrace import errors
from millrace.errors import AgentUnreachable, DataLost, FormatError, MillraceError
from millrace.ids import AttemptId, FolderId, MapTask
from millrace.shuffle.fetch_counts import FetchCounts
from millrace.shuffle.handle import Shuffle
from millrace.shuffle.manifest import Choice, Manifest, parse_attempt
from millrace.shuffle.reports import StageReport
from millrace.transport.agent.hosts_at_once import ask_hosts

LOSSES: Final = (DataLost, FormatError, AgentUnreachable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A map output that could not be read, and the error of the reader."""

    attempt: AttemptId
    folder: FolderId | None
    kind: str
    text: str

    @property
    def is_of_host(self) -> bool:
        """Whether only its host was not reached; the output itself may be whole."""
        return self.kind == AgentUnreachable.__name__

    @property
    def first_line(self) -> str:
        """What happened, in a line."""
        return self.text.splitlines()[0] if self.text else self.kind


class OutputsLost(Exception):
    """Stops a round of a query: these outputs have to be made again."""

    def __init__(self, lost: Sequence[Lost]) -> None:
        super().__init__(f"{len(lost)} map outputs are lost, the first: {lost[0].text}")
        self.lost = tuple(lost)


def find_lost(shuffle: Shuffle, partitions: Sequence[int]) -> list[Lost]:
    """Every map output of which these partitions cannot be read; several hosts are asked at once.

    A host that does not answer once is not asked again.
    """
    by_folder: dict[FolderId | None, list[Choice]] = {}
    for choice in shuffle.manifest.chosen:
        by_folder.setdefault(choice.folder, []).append(choice)
    found: dict[AttemptId, Lost] = {}
    for losses in ask_hosts(partial(_lost_of, shuffle, partitions), by_folder.values()):
        found |= {loss.attempt: loss for loss in losses}
    return [found[choice.attempt] for choice in shuffle.manifest.chosen if choice.attempt in found]


def _lost_of(shuffle: Shuffle, partitions: Sequence[int], chosen: Sequence[Choice]) -> list[Lost]:
    """The same of the outputs in one folder."""
    losses: list[Lost] = []
    silent: str | None = None
    for choice in chosen:
        kind, text = AgentUnreachable.__name__, silent
        if text is None:
            try:
                shuffle.check(choice, partitions)
                continue
            except LOSSES as error:
                kind, text = type(error).__name__, str(error)
                silent = text if isinstance(error, AgentUnreachable) else None
        losses.append(Lost(attempt=choice.attempt, folder=choice.folder, kind=kind, text=text))
    return losses


def encode_lost(lost: Iterable[Lost]) -> str:
    """Encode losses as text, for a task's result."""
    return json.dumps([[str(loss.attempt), loss.folder, loss.kind, loss.text] for loss in lost])


def decode_lost(text: str) -> list[Lost]:
    """Undo `encode_lost`."""
    return [
        Lost(
            attempt=parse_attempt(attempt),
            folder=None if folder is None else FolderId(folder),
            kind=kind,
            text=message,
        )
        for attempt, folder, kind, message in json.loads(text)
    ]


class Repairs:
    """Which map tasks were run again because their output was lost."""

    def __init__(self, rounds_max: int, hosts_max: int = 1) -> None:
        self._rounds_left = rounds_max
        self._rounds_max = rounds_max
        self._hosts_max = hosts_max
        self._made_again: dict[tuple[int, MapTask], list[Lost]] = {}

    def of_stage(self, number: int) -> dict[MapTask, str]:
        """Map tasks of a stage whose finished output is in doubt, and why."""
        return {
            task: f"map output {losses[-1].attempt} was lost: {losses[-1].first_line}"
            for (stage, task), losses in self._made_again.items()
            if stage == number
        }

    def on_lost(self, lost: Sequence[Lost], manifests: Mapping[int, Manifest]) -> None:
        """Note which tasks have to run again; raise if they did already, or too often."""
        if not self._rounds_left:
            raise _error(lost[0], f"the query was begun again {self._rounds_max} times already")
        self._rounds_left -= 1
        by_attempt = {loss.attempt: loss for loss in lost}
        for number, manifest in manifests.items():
            for choice in manifest.chosen:
                loss = by_attempt.get(choice.attempt)
                if loss is None:
                    continue
                before = self._made_again.setdefault((number, choice.map_task), [])
                if len(before) >= (self._hosts_max if loss.is_of_host else 1):
                    raise _error(
                        loss,
                        f"map task {choice.map_task} of stage {number} was repaired already, "
                        f"after: {before[-1].first_line}",
                    )
                before.append(loss)


def _error(lost: Lost, tried: str) -> MillraceError:
    """The error that ends the query: of the same kind and with the same text as the reader got."""
    kind = getattr(errors, lost.kind, DataLost)
    text = "\n".join(line for line in lost.text.splitlines() if "to fix:" not in line)
    assert issubclass(kind, MillraceError)
    return kind(
        f"{text}\n  map output: {lost.attempt}\n  tried: {tried}\n"
        "  to fix: see who removes or changes files of the workspace, or whether its disk fails, "
        "then run again"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRound:
    """What one round did for a stage: the tasks it ran and why, and the tasks it reused."""

    ran: Mapping[MapTask, str]
    reused: frozenset[MapTask]
    seconds: float
    notes: tuple[str, ...] = ()
    fetched: FetchCounts = field(default_factory=FetchCounts)


def stage_report(rounds: Sequence[StageRound], map_tasks: int) -> StageReport:
    """What all rounds of a query did for a stage."""
    reasons: dict[int, str] = {}
    again: dict[int, str] = {}
    finished: set[MapTask] = set()
    for done in rounds:
        for task, reason in done.ran.items():
            if task in finished:
                again[task] = reason
            reasons.setdefault(task, reason)
        finished |= done.reused | done.ran.keys()
    return StageReport(
        map_tasks=map_tasks,
        reused=map_tasks - len(reasons),
        seconds=sum(done.seconds for done in rounds),
        reasons=reasons,
        again=again,
        notes=rounds[-1].notes if rounds else (),
        fetched=sum((done.fetched for done in rounds), FetchCounts()),
    )
