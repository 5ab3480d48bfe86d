"""The last known address of each agent of a workspace.

Invariant: an address is only a hint. An agent proves by its answer that it serves the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millrace.ids import FolderId
from millrace.storage import documents, layout
from millrace.storage.store import Store
from millrace.transport.agent.agent_messages import checked_folder

AGENTS: Final = "agents"
_SUFFIX: Final = ".json"

AddressOf = Callable[[FolderId], str | None]


def record_agent(store: Store, folder: FolderId, address: str) -> None:
    """Note where the agent of a host's folder answers now."""
    if agent_address(store, folder) != address:
        store.make_folder(AGENTS)
        store.replace(_path(folder), documents.AddressHint(address).to_json())


def agent_address(store: Store, folder: FolderId) -> str | None:
    """Where the agent of a host's folder answered last; None if that is not known."""
    # Only a hint: the next task on that host records it again.
    recorded = documents.hint(store.read(_path(folder)), documents.AddressHint)
    return None if recorded is None else recorded.address


def known_agents(store: Store) -> dict[FolderId, str]:
    """Every folder of a host that this workspace heard of, with its agent's address."""
    addresses = {}
    for name in sorted(store.names(AGENTS)):
        folder = FolderId(name.removesuffix(_SUFFIX))
        if name.endswith(_SUFFIX) and layout.is_folder_id(folder):
            address = agent_address(store, folder)
            if address is not None:
                addresses[folder] = address
    return addresses


def _path(folder: FolderId) -> str:
    return f"{AGENTS}/{checked_folder(folder)}{_SUFFIX}"
