"""The call files of workers: their paths, and the files that dead workers left."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Collection, Iterator
from typing import Final

from millrace.errors import MillraceError
from millrace.journal.broker import Broker
from millrace.journal.core.values import Lease
from millrace.pipeline.calling.call_file import CallFile, claim
from millrace.pipeline.core import hops
from millrace.pipeline.core.call_outcomes import LeftCalls
from millrace.pipeline.paid.call_records import CallRecord
from millrace.pipeline.worker.turn import LeasedUnit
from millrace.storage import modes
from millrace.storage.objects.object_address import is_url
from millrace.storage.scratch import own_folder

_FOLDER: Final = "calls"
_LEASE_PARTS: Final = 3
"""Fields of a lease in a header: name, epoch, holder."""


class CallFiles:
    """The call files of one unit; none if a worker cannot see the workspace's folder."""

    def __init__(self, workspace: str, unit: LeasedUnit) -> None:
        self._unit, self._folder = unit, calls_folder(workspace, unit.hop.job, unit.job_id)
        if is_url(workspace) or os.path.isdir(workspace):
            with contextlib.suppress(OSError):
                modes.make_folders(self._folder)

    def open(self, segment: int | None = None, *, slots: int = 1) -> CallFile:
        """A file for the next calls; those of paid calls are segments, counted in each turn."""
        unit = self._unit
        header = {
            "hop": unit.hop.name,
            "journal": unit.journal.id,
            "epoch": unit.lease.epoch,
            "segment": segment,
            "run": unit.run,
            "leases": [[lease.name, lease.epoch, lease.holder] for lease in unit.keeper.leases()],
        }
        name = f"{unit.hop.name}.{unit.journal.id}.{unit.lease.epoch}"
        path = f"{self._folder}/{name}" if segment is None else f"{self._folder}/{name}.{segment}"
        return CallFile.open(path, header, slots=slots)

    def take(self, record: CallRecord) -> LeftCalls | None:
        """The calls of the dead worker that wrote a record, of all segments of its turn.

        Files that are of no use any more are removed; `forget` removes these.
        """
        segments: list[LeftCalls] = []
        for path, left in self._left(is_paid=True):
            if left.header["epoch"] == record.epoch:
                segments.append(left)
            else:
                _remove(path)
        return functools.reduce(LeftCalls.joined, segments) if segments else None

    def forget(self) -> None:
        """Remove the files of paid calls of dead workers: their results are published."""
        for path, _ in self._left(is_paid=True):
            _remove(path)

    def take_cheap(self) -> LeftCalls | None:
        """The cheap calls of the last dead worker; `forget_cheap` removes their file."""
        left = [left for _, left in self._left(is_paid=False)]
        return max(left, key=lambda left: int(left.header["epoch"]), default=None)

    def forget_cheap(self) -> None:
        """Remove the files of cheap calls of dead workers: the calls are recorded."""
        for path, _ in self._left(is_paid=False):
            _remove(path)

    def _left(self, *, is_paid: bool) -> Iterator[tuple[str, LeftCalls]]:
        own_unit = (self._unit.hop.name, self._unit.journal.id)
        for path, left in _dead(self._folder):
            header = left.header
            if (header["hop"], header["journal"]) != own_unit:
                continue
            if (header["segment"] is not None) == is_paid:
                yield path, left


def calls_folder(workspace: str, job: str, job_id: str) -> str:
    """Where a job has its call files: beside a bucket, in a folder of this host."""
    if is_url(workspace):
        return os.path.join(own_folder(), hops.ROOT, job_id, _FOLDER)
    return os.path.join(workspace, hops.ROOT, job, _FOLDER)


def release_dead(broker: Broker, folder: str, job: str, units: Collection[tuple[str, int]]) -> None:
    """Release the leases of workers that are known to be dead, so that no worker waits for them.

    Files of units that no longer exist are removed.
    """
    for path, left in _dead(folder):
        for name, epoch, holder in left.header["leases"]:
            if name.startswith(f"{hops.ROOT}/{job}/"):
                # One that cannot be given back runs out by itself.
                with contextlib.suppress(MillraceError):
                    broker.release(Lease(name=name, epoch=epoch, holder=holder, expires_at_ms=0))
        if (left.header["hop"], left.header["journal"]) not in units:
            _remove(path)


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
    """Whether a header has all fields that `CallFiles.open` writes."""
    header = left.header
    numbers = (header.get("journal"), header.get("epoch"), header.get("run"))
    leases = header.get("leases")
    return (
        isinstance(header.get("hop"), str)
        and isinstance(header.get("segment"), int | None)
        and all(isinstance(number, int) for number in numbers)
        and isinstance(leases, list)
        and all(isinstance(lease, list) and len(lease) == _LEASE_PARTS for lease in leases)
    )


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
