"""The files in which workers mark their calls: where they lie, and what dead workers left there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import Final

from millrace.errors import MillraceError
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.pipeline.calling.call_file import CallFile, claim
from millrace.pipeline.core import hops
from millrace.pipeline.core.call_outcomes import LeftCalls
from millrace.pipeline.core.call_records import CallRecord
from millrace.pipeline.worker.turn import LeasedUnit
from millrace.storage import modes

_FOLDER: Final = "calls"
_LEASE_PARTS: Final = 3
"""Of a lease in a header: name, epoch, holder."""


class CallFiles:
    """Those of one unit, in the workspace's folder; none where a worker cannot see that."""

    def __init__(self, workspace: str, unit: LeasedUnit) -> None:
        self._unit, self._folder = unit, _folder(workspace, unit.hop.job)
        if os.path.isdir(workspace):
            with contextlib.suppress(OSError):
                modes.make_folders(self._folder)

    def open(self, first: int | None = None, *, slots: int = 1) -> CallFile:
        """A file for calls to come; `first` is the offset that an intent begins at.

        With it, results are kept beside the marks until they are published.
        """
        unit = self._unit
        header = {
            "hop": unit.hop.name,
            "journal": unit.journal.id,
            "epoch": unit.lease.epoch,
            "first": first,
            "run": unit.run,
            "leases": [[lease.name, lease.epoch, lease.holder] for lease in unit.keeper.leases()],
        }
        name = f"{unit.hop.name}.{unit.journal.id}.{unit.lease.epoch}"
        path = f"{self._folder}/{name}" if first is None else f"{self._folder}/{name}.{first}"
        return CallFile.open(path, header, slots=slots, keeps=first is not None)

    def take(self, record: CallRecord | None = None) -> LeftCalls | None:
        """What the dead worker left that wrote a record, or was the last of a cheap step.

        Files that are of no use any more are removed; so is this one with `forget`.
        """
        chosen: LeftCalls | None = None
        for path, left in self._left():
            header = left.header
            if record is None:
                is_wanted = chosen is None or header["epoch"] > chosen.header["epoch"]
            else:
                is_wanted = (header["epoch"], header["first"]) == (record.epoch, record.first)
            if is_wanted:
                chosen = left
            else:
                _remove(path)
        return chosen

    def forget(self) -> None:
        """Remove what dead workers left: it is published."""
        for path, _ in self._left():
            _remove(path)

    def _left(self) -> Iterator[tuple[str, LeftCalls]]:
        own_unit = (self._unit.hop.name, self._unit.journal.id)
        for path, left in _dead(self._folder):
            if (left.header["hop"], left.header["journal"]) == own_unit:
                yield path, left


def release_dead(
    broker: Broker, workspace: str, job: str, units: Collection[tuple[str, int]]
) -> None:
    """Give back the leases of workers that are known to be dead, so that nobody waits for them.

    Files of units that there are no more are removed.
    """
    for path, left in _dead(_folder(workspace, job)):
        for name, epoch, holder in left.header["leases"]:
            if name.startswith(f"{hops.ROOT}/{job}/"):
                # One that cannot be given back runs out by itself.
                with contextlib.suppress(MillraceError):
                    broker.release(Lease(name=name, epoch=epoch, holder=holder, expires_at_ms=0))
        if (left.header["hop"], left.header["journal"]) not in units:
            _remove(path)


def _folder(workspace: str, job: str) -> str:
    return os.path.join(workspace, hops.ROOT, job, _FOLDER)


def _dead(folder: str) -> Iterator[tuple[str, LeftCalls]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        left = claim(path)
        if left is not None and _is_whole(left):
            yield path, left


def _is_whole(left: LeftCalls) -> bool:
    """Whether it says whose it is, in the way that `Flights.open` does."""
    header = left.header
    numbers = (header.get("journal"), header.get("epoch"), header.get("run"))
    leases = header.get("leases")
    return (
        isinstance(header.get("hop"), str)
        and isinstance(header.get("first"), int | None)
        and all(isinstance(number, int) for number in numbers)
        and isinstance(leases, list)
        and all(isinstance(lease, list) and len(lease) == _LEASE_PARTS for lease in leases)
    )


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
