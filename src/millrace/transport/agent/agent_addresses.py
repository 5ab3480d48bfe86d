"""The last known address of each agent of a workspace, and since when it is silent.

Invariant: an address is only a hint. An agent proves by its answer that it serves the folder. The
address of a host that is silent for long is forgotten; the next task on that host notes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from millrace.ids import FolderId
from millrace.storage import documents, layout
from millrace.storage.store import Store
from millrace.transport.agent.agent_messages import checked_folder

AGENTS: Final = "agents"
_SUFFIX: Final = ".json"

AddressOf = Callable[[FolderId], str | None]


class AgentHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an agent answered last, and since when it does not."""

    address: str
    silent_since_ms: int | None = None


def record_agent(store: Store, folder: FolderId, address: str) -> None:
    """Note where the agent of a host's folder answers now."""
    if _hint(store, folder) != AgentHint(address):
        store.make_folder(AGENTS)
        _write(store, folder, AgentHint(address))


def agent_address(store: Store, folder: FolderId) -> str | None:
    """Where the agent of a host's folder answered last; None if that is not known."""
    recorded = _hint(store, folder)
    return None if recorded is None else recorded.address


def known_agents(store: Store) -> dict[FolderId, str]:
    """Every folder of a host that this workspace heard of, with its agent's address."""
    names = [name for name in sorted(store.names(AGENTS)) if name.endswith(_SUFFIX)]
    folders = [FolderId(name.removesuffix(_SUFFIX)) for name in names]
    folders = [folder for folder in folders if layout.is_folder_id(folder)]
    addresses = store.each(lambda folder: agent_address(store, folder), folders)
    known = zip(folders, addresses, strict=True)
    return {folder: address for folder, address in known if address is not None}


def note_answers(
    store: Store, answered: Mapping[FolderId, bool], *, now_ms: int, silent_ms_max: int
) -> None:
    """Note which agents answered and which did not; forget those silent for longer than that."""
    for folder, has_answered in answered.items():
        recorded = _hint(store, folder)
        if recorded is None:
            continue
        since_ms = None if has_answered else recorded.silent_since_ms or now_ms
        if since_ms is not None and now_ms - since_ms > silent_ms_max:
            store.remove_file(_path(folder))
        elif since_ms != recorded.silent_since_ms:
            _write(store, folder, AgentHint(recorded.address, since_ms))


def _hint(store: Store, folder: FolderId) -> AgentHint | None:
    return documents.hint(store.read(_path(folder)), AgentHint)


def _write(store: Store, folder: FolderId, hint: AgentHint) -> None:
    store.replace(_path(folder), msgspec.json.encode(hint))


def _path(folder: FolderId) -> str:
    return f"{AGENTS}/{checked_folder(folder)}{_SUFFIX}"
