"""The callables of steps: functions as they are, and objects made once in a worker process.

Spark uses a worker process for many tasks, so a callable stays until a step needs another one:
then the callables of other steps are closed first, so that two models never share the memory. Steps
that were given the same class or partial share one callable.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from millrace.pipeline.core.hops import Hop
from millrace.pipeline.core.job_model import Calling, FunctionSink, Map
from millrace.pipeline.define.user_functions import WorkerFunction

Key = tuple[str, str, str, str]


@dataclass(slots=True)
class Instance:
    """A callable as one step calls it; only an async one has an event loop."""

    function: WorkerFunction
    runner: asyncio.Runner | None = None

    def close(self) -> None:
        """Close the callable and its event loop."""
        self.function.close()
        if self.runner is not None:
            self.runner.close()

    def for_step(self, step: Map | FunctionSink) -> Instance:
        """The same callable for another step, which may return other columns."""
        return Instance(self.function.for_schema(step.calling, _schema_of(step)), self.runner)


_MADE: dict[Key, Instance] = {}
_RUNS: dict[str, int] = {}
"""The run that each job is in, as far as this process knows."""
_LOCK = threading.Lock()


def key_of(hop: Hop, calling: Calling) -> Key:
    """The key of a callable in this process.

    A callable whose code cannot be identified is made again in each run.
    """
    identity = calling.identity or f"run {_RUNS.get(hop.job)}"
    return (hop.job, calling.shared or hop.name, calling.name, f"{identity} {calling.setting}")


def begin_run(job: str, run: int) -> None:
    """From now on this process works for this run of the job."""
    _RUNS[job] = run


def made_for(hop: Hop) -> bool:
    """Whether a callable of this hop lives in this process."""
    return any(calling.makes and key_of(hop, calling) in _MADE for calling in hop.callings)


def has_model(hop: Hop) -> bool:
    """Whether a step of a hop has a callable to make."""
    return any(calling.makes for calling in hop.callings)


def instance_of(hop: Hop, step: Map | FunctionSink) -> Instance:
    """The callable of a step, made if it is not there yet. Exceptions of making it pass through."""
    if not step.calling.makes:
        return _instance(step)
    key = key_of(hop, step.calling)
    with _LOCK:
        instance = _MADE.get(key)
        if instance is None:
            own_keys = {key_of(hop, calling) for calling in hop.callings}
            _free(lambda other: other not in own_keys)
            instance = _MADE[key] = _instance(step)
        return instance.for_step(step)


def _instance(step: Map | FunctionSink) -> Instance:
    runner = asyncio.Runner() if step.calling.is_async else None
    return Instance(WorkerFunction(step.calling, _schema_of(step)), runner)


def _schema_of(step: Map | FunctionSink) -> pa.Schema | None:
    return None if isinstance(step, FunctionSink) else step.returned or step.schema


def free_all() -> None:
    """Close everything that was made in this process."""
    with _LOCK:
        _free(lambda _: True)


def _free(unwanted: Callable[[Key], bool]) -> None:
    for key in [key for key in _MADE if unwanted(key)]:
        _MADE.pop(key).close()
