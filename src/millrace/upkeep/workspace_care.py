"""Looks after an open workspace: checks, clean-ups, and what its retention says."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from millrace.config import Config
from millrace.journal.broker import Broker
from millrace.reads.live.live_reads import LiveReads
from millrace.shuffle import cleanup
from millrace.shuffle.cleanup import CleanupReport
from millrace.storage.store import Store
from millrace.storage.workspace_home import WorkspaceHome
from millrace.transport.agent.remote_outputs import Agents
from millrace.upkeep.findings import WorkspaceCheck
from millrace.upkeep.host_folders import clean_hosts
from millrace.upkeep.retention_pass import RetainedWorkspace, carry_out, is_due
from millrace.upkeep.retention_rules import RetentionRules, read_rules, write_rules
from millrace.upkeep.verify import verify_workspace
from millrace.upkeep.verify_shuffles import OpenShuffle
from millrace.wakeup import WakeUp


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceCare:
    """What is done for a workspace beside its users' work."""

    home: WorkspaceHome
    store: Store
    config: Config
    agents: Callable[[], Agents]
    open_shuffle: OpenShuffle
    ledger: str | None

    def cleanup(self, ttl_ms: int) -> CleanupReport:
        """Remove attempts and saved rows that are older than this and not needed."""
        self.home.look()
        now, config = _now_ms(), self.config
        removed = cleanup.remove_expired(self.store, ttl_ms=ttl_ms, now_ms=now, config=config)
        return clean_hosts(self.store, self.agents, removed, config)

    def drop_runs(self, age_ms: int) -> CleanupReport:
        """Remove whole runs that have ended and are older than this."""
        self.home.look()
        now, config = _now_ms(), self.config
        removed = cleanup.drop_runs(self.store, older_than_ms=age_ms, now_ms=now, config=config)
        return clean_hosts(self.store, self.agents, removed, config)

    def verify(self, on_bytes: Callable[[int], None]) -> WorkspaceCheck:
        """Check everything at rest."""
        self.home.look()
        return verify_workspace(self.store, self.open_shuffle, self.config, on_bytes, self.ledger)

    def keep_rules(self, rules: RetentionRules) -> None:
        """Record how long things are kept; the workspace is made now if there is none."""
        self.home.make()
        write_rules(self.store, rules)

    def rules(self) -> RetentionRules:
        """How long things are kept."""
        self.home.look()
        return read_rules(self.store)

    def retained(self, broker: Broker) -> RetainedWorkspace:
        """The workspace and its retention."""
        return RetainedWorkspace(
            store=self.store,
            config=self.config,
            broker=broker,
            rules=read_rules(self.store),
            clean_hosts=lambda removed: clean_hosts(self.store, self.agents, removed, self.config),
        )

    def look_after(self, broker: Broker, live: LiveReads, stop: WakeUp) -> None:
        """Remove what is no longer kept, if it is time for that. Called by the owner."""
        retained = self.retained(broker)
        if not retained.rules.is_empty and is_due(self.store, self.config, _now_ms()):
            carry_out(
                replace(retained, reading=live.needed_from, is_stopping=lambda: stop.is_stopped)
            )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
