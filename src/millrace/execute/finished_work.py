"""Finds map tasks of a stage that are finished already, in this workspace or on other hosts.

Invariant: outputs of other runs are noted as needed before they are used, and looked at once more
after that, so that no clean-up removes them in between.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from millrace.errors import Retriable
from millrace.execute.map_task import Reuse, StageTask
from millrace.execute.shuffle_workspace import HostsAsked, ShuffleWorkspace
from millrace.execute.stage_tasks import StageRun
from millrace.execute.tasks.task_results import Result
from millrace.faults import fault
from millrace.identity import fingerprint as fp
from millrace.ids import FolderId, MapTask
from millrace.scan.source import has_content
from millrace.shuffle import reuse, runs
from millrace.shuffle.index import MapTaskIndex
from millrace.transport.agent.agent_addresses import known_agents, note_answers
from millrace.transport.agent.hosts_at_once import ask_hosts
from millrace.transport.agent.remote_outputs import Agents


def reuse_finished(workspace: ShuffleWorkspace, work: StageRun) -> None:
    """Add finished work of other runs to the results, and keep it from being removed."""
    indexes = _find_here(workspace, work)
    _rely_on(workspace, work, indexes)
    fault("shuffle.driver.after_rely", work.stage.stage_id)
    whole = _still_whole(workspace, work, indexes)
    work.results |= {number: _result_here(number, index) for number, index in whole.items()}
    _note_answers(workspace, _find_elsewhere(workspace, work))


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


def _find_elsewhere(workspace: ShuffleWorkspace, work: StageRun) -> dict[FolderId, bool]:
    """Ask all agents for work that is not finished here; returns which of them answered.

    Where several have the same work, the first in the order of their folders counts.
    """
    mode, asked = work.stage.reuse, workspace.asked
    missing = [task for task in work.missing() if task.made_from is not None]
    if not mode or not missing:
        return {}
    addresses = known_agents(workspace.store)
    known_silent = asked.silent & addresses.keys()
    folders = [folder for folder in addresses if folder not in known_silent]
    answers = ask_hosts(partial(_ask_agent, workspace.agents, asked, missing, mode), folders)
    answered: dict[FolderId, bool] = {}
    for folder, outputs in zip(folders, answers, strict=True):
        answered[folder] = outputs is not None
        for number, index in (outputs or {}).items():
            if number not in work.results:
                work.results[number] = Result(
                    map_task=number, folder=folder, agent=addresses[folder], ran=False, index=index
                )
                work.reasons.pop(number, None)
    silent = [address for folder, address in addresses.items() if not answered.get(folder)]
    if silent:
        for task in missing:
            if task.map_task not in work.results:
                work.reasons[task.map_task] += f"; {_silence_text(silent)}"
    return answered


def _ask_agent(
    agents: Agents,
    asked: HostsAsked,
    tasks: Sequence[StageTask],
    mode: Reuse,
    folder: FolderId,
) -> dict[MapTask, MapTaskIndex] | None:
    """What is finished on a host, checked where it is in doubt; None if its agent is silent."""
    if folder not in asked.heard:
        if not agents.is_there(folder):
            asked.silent.add(folder)
            return None
        asked.heard.add(folder)
    outputs: dict[MapTask, MapTaskIndex] = {}
    for in_doubt in (False, True):
        some = [task for task in tasks if (task.suspect is not None) == in_doubt]
        try:
            indexes = agents.find(
                folder,
                [task.made_from for task in some if task.made_from is not None],
                verify=in_doubt or mode == "verified",
            )
        except Retriable:
            asked.silent.add(folder)
            return None
        for task, index in zip(some, indexes, strict=True):
            if index is not None:
                outputs[task.map_task] = index
    return outputs


def _silence_text(addresses: Sequence[str]) -> str:
    if len(addresses) == 1:
        return f"the agent at {addresses[0]} does not answer"
    return f"{len(addresses)} agents do not answer, the first one at {addresses[0]}"


def _note_answers(workspace: ShuffleWorkspace, answered: Mapping[FolderId, bool]) -> None:
    note_answers(
        workspace.store,
        answered,
        now_ms=time.time_ns() // 1_000_000,
        silent_ms_max=workspace.config.agent_silent_ms_max,
    )
