"""Cleans folders of hosts together with their workspace: each agent removes from its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from millrace.config import Config
from millrace.ids import QueryId
from millrace.shuffle import cleanup, runs
from millrace.shuffle.cleanup import CleanupReport
from millrace.storage import layout
from millrace.storage.store import Store
from millrace.transport.agent.agent_addresses import known_agents, note_answers
from millrace.transport.agent.agent_messages import KeptRuns
from millrace.transport.agent.hosts_at_once import ask_hosts
from millrace.transport.agent.remote_outputs import Agents


def clean_hosts(
    store: Store, agents: Callable[[], Agents], removed: CleanupReport, config: Config
) -> CleanupReport:
    """Let agents that answer remove what is gone from the workspace; the report with that added.

    A host that does not answer is cleaned by a later clean-up.
    """
    hosts = known_agents(store)
    if not hosts:
        return removed
    now_ms = time.time_ns() // 1_000_000
    there = set(map(QueryId, store.numbers(layout.SHUFFLE)))
    kept = KeptRuns(
        newest=max(there, default=0),
        runs=frozenset(
            run
            for run in there - set(removed.runs)
            if cleanup.is_kept(store, run, now_ms=now_ms, config=config)
        ),
        attempts=frozenset(str(attempt) for attempt in runs.relied_on(store)),
    )
    asked = agents()
    answered = dict(zip(hosts, ask_hosts(asked.is_there, hosts), strict=True))
    note_answers(store, answered, now_ms=now_ms, silent_ms_max=config.agent_silent_ms_max)
    serving = [folder for folder in hosts if answered[folder]]
    answers = ask_hosts(lambda folder: asked.keep_only(folder, kept), serving)
    cleaned = [answer for answer in answers if answer is not None]
    return replace(
        removed,
        on_hosts=sum(answer.attempts for answer in cleaned),
        bytes=removed.bytes + sum(answer.bytes for answer in cleaned),
    )
