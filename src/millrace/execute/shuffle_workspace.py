"""The workspace as running work sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.config import Config
from millrace.execute.task_folders import Folders
from millrace.ids import FolderId
from millrace.storage.store import Store
from millrace.transport.agent.keep_alive import KeepAlive
from millrace.transport.agent.remote_outputs import Agents


@dataclass(frozen=True, slots=True)
class HostsAsked:
    """Which hosts were asked for finished work. A silent one is asked once."""

    heard: set[FolderId] = field(default_factory=set)
    silent: set[FolderId] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleWorkspace:
    """Where a run writes, and how it reaches map outputs on other hosts."""

    store: Store
    folders: Folders
    config: Config
    agents: Agents
    keep_alive: KeepAlive
    asked: HostsAsked = field(default_factory=HostsAsked)
    """By this query."""
