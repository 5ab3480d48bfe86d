"""How commands take a workspace: a folder, or a part of a bucket. Looking makes none.

Invariant: a command that looks raises `WorkspaceUnknown` at a path that is no workspace, and leaves
the path as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from millrace.errors import UserError
from millrace.journal.embedded.ledger.lost_commits import AcceptLoss
from millrace.storage.objects.object_address import is_url
from millrace.transport.owner import broker_address, owner_endpoint
from millrace.workspace import Workspace, runtime_of
from millrace.workspace import open as open_workspace


class WorkspacePath(click.Path):
    """A folder, or a url such as s3://bucket/prefix. `opened` checks the path."""

    name = "workspace"

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as the library's
        """Leave a url as it is."""
        text = os.fspath(value)
        return text if is_url(text) else super().convert(value, param, ctx)


workspace_argument = click.argument("workspace", type=WorkspacePath())


@contextmanager
def opened(workspace: str) -> Iterator[Workspace]:
    """A workspace that is there."""
    with open_workspace(workspace, create=False) as ws:
        yield ws


@contextmanager
def opened_with_journals(workspace: str, *, accept_loss: AcceptLoss = False) -> Iterator[Workspace]:
    """A workspace that has journals, served by the owner that is there, or by this process."""
    with opened(workspace) as ws:
        store = runtime_of(ws).store
        endpoint, home = owner_endpoint.read(store), broker_address.recorded(store)
        if endpoint is None and home is None:
            raise UserError(
                f"workspace {ws.path} has no journals, so nothing was written to one there\n"
                f"  found: no {broker_address.HOME_FILE}\n"
                "  to fix: give the workspace whose journals are meant"
            )
        kind = (
            endpoint.broker.removesuffix(owner_endpoint.READ_ONLY)
            if endpoint
            else home or broker_address.EMBEDDED
        )
        with open_workspace(workspace, create=False, broker=kind, accept_loss=accept_loss) as again:
            yield again
