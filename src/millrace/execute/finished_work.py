"""Finds map tasks of a stage that are finished already, in this workspace or on other hosts.

Invariant: outputs of other runs are noted as needed before they are used, and looked at once more
after that, so that no clean-up removes them in between.
"""

from __future__ import annotations

from millrace.errors import Retriable
from millrace.execute.map_task import StageTask
from millrace.execute.shuffle_workspace import ShuffleWorkspace
from millrace.execute.stage_tasks import StageRun
from millrace.execute.tasks.task_results import Result
from millrace.faults import fault
from millrace.identity import fingerprint as fp
from millrace.ids import MapTask
from millrace.scan.source import has_content
from millrace.shuffle import reuse, runs
from millrace.shuffle.index import MapTaskIndex
from millrace.transport.agent.agent_addresses import known_agents


def reuse_finished(workspace: ShuffleWorkspace, work: StageRun) -> None:
    """Add finished work of other runs to the results, and keep it from being removed."""
    indexes = _find_here(workspace, work)
    _rely_on(workspace, work, indexes)
    fault("shuffle.driver.after_rely", work.stage.stage_id)
    whole = _still_whole(workspace, work, indexes)
    work.results |= {number: _result_here(number, index) for number, index in whole.items()}
    _find_elsewhere(workspace, work)


def keep_whole(workspace: ShuffleWorkspace, work: StageRun) -> None:
    """Keep outputs of other runs from being removed; those that vanished before are missing."""
    indexes = {
        number: result.index
        for number, result in work.results.items()
        if result.folder is None and result.index.id.task.query_id != work.stage.query_id
    }
    _rely_on(workspace, work, indexes)
    for number in indexes.keys() - _still_whole(workspace, work, indexes).keys():
        del work.results[number]


def find_finished(workspace: ShuffleWorkspace, work: StageRun) -> None:
    """Add finished work to the results and write nothing: for a query that is only explained."""
    for number, index in _find_here(workspace, work).items():
        work.results[number] = _result_here(number, index)
    _find_elsewhere(workspace, work)


def _rely_on(
    workspace: ShuffleWorkspace, work: StageRun, indexes: dict[MapTask, MapTaskIndex]
) -> None:
    attempts = [index.id for index in indexes.values()]
    runs.rely_on(workspace.store, work.stage.query_id, work.stage.stage_id, attempts)


def _still_whole(
    workspace: ShuffleWorkspace, work: StageRun, indexes: dict[MapTask, MapTaskIndex]
) -> dict[MapTask, MapTaskIndex]:
    """Those whose files are all there; notes the reason where they are not."""
    store = workspace.store
    whole = store.each(lambda index: reuse.is_whole(store, index), indexes.values())
    kept: dict[MapTask, MapTaskIndex] = {}
    for (number, index), is_whole in zip(indexes.items(), whole, strict=True):
        if is_whole:
            kept[number] = index
        else:
            work.reasons[number] = f"attempt {index.id} was removed just now"
    return kept


def _find_here(workspace: ShuffleWorkspace, work: StageRun) -> dict[MapTask, MapTaskIndex]:
    """Finished work in the workspace's own folder; notes the reasons where there is none."""
    mode, store = work.stage.reuse, workspace.store
    known = reuse.known_families(store, len(work.tasks)) if mode else None

    def find(task: StageTask) -> MapTaskIndex | str:
        if task.made_from is None:
            return work.unrecognised or "not recognised"
        if not mode:
            return "reuse was switched off"
        if known is not None and fp.family(task.made_from) not in known:
            return task.suspect or reuse.NOT_DONE_BEFORE
        verify = mode == "verified" or task.suspect is not None
        index = reuse.find(store, task.made_from, has_content=has_content, verify=verify)
        return index or task.suspect or reuse.why_not(store, task.made_from)

    indexes: dict[MapTask, MapTaskIndex] = {}
    for task, answer in zip(work.tasks, store.each(find, work.tasks), strict=True):
        if isinstance(answer, str):
            work.reasons[task.map_task] = answer
        else:
            indexes[task.map_task] = answer
    return indexes


def _result_here(number: MapTask, index: MapTaskIndex) -> Result:
    return Result(map_task=number, folder=None, agent=None, ran=False, index=index)


def _find_elsewhere(workspace: ShuffleWorkspace, work: StageRun) -> None:
    mode = work.stage.reuse
    if mode:
        _ask_agents(workspace, work, suspect=False, verify=mode == "verified")
        _ask_agents(workspace, work, suspect=True, verify=True)


def _ask_agents(
    workspace: ShuffleWorkspace, work: StageRun, *, suspect: bool, verify: bool
) -> None:
    """Ask the agents of other hosts for work that is not finished here."""
    for folder, address in known_agents(workspace.store).items():
        missing = [task for task in work.missing() if (task.suspect is not None) == suspect]
        requests = [(t.map_task, t.made_from) for t in missing if t.made_from is not None]
        if not requests:
            return
        try:
            indexes = workspace.agents.find(folder, [made for _, made in requests], verify=verify)
        except Retriable:
            for number, _ in requests:
                work.reasons[number] += f"; the agent at {address} does not answer"
            continue
        for (number, _), index in zip(requests, indexes, strict=True):
            if index is not None:
                work.results[number] = Result(
                    map_task=number, folder=folder, agent=address, ran=False, index=index
                )
                work.reasons.pop(number, None)
