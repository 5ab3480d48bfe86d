"""`ws.ui_url` and `mr.ui`: the pages of an open workspace, served by this process."""

from __future__ import annotations

from millrace.extras import check_extra
from millrace.spark.workspace_runtime import Closable, WorkspaceRuntime


class WorkspaceUi:
    """The page of a workspace. `Workspace` is one."""

    _runtime: WorkspaceRuntime

    @property
    def ui_url(self) -> str:
        """The address of the pages of this workspace, served by this process for this host alone.

        They show runs, jobs, journals and reads as they are, until the workspace is closed. The
        extra `ui` is needed.

        Example:
            >>> ws.ui_url
            'http://127.0.0.1:.../'
        """
        return self._runtime.served_pages(_start)


class UiLink:
    """The address of the pages of a workspace; a notebook shows it as a link.

    Example:
        >>> mr.ui(ws).url == ws.ui_url
        True
    """

    def __init__(self, url: str) -> None:
        """Use `millrace.ui`."""
        self.url = url

    def __repr__(self) -> str:
        return self.url

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noopener">{self.url}</a>'


def ui(ws: WorkspaceUi) -> UiLink:
    """Serve the pages of an open workspace from this process; `millrace ui` does it from a shell.

    Example:
        >>> mr.ui(ws)
        http://127.0.0.1:.../
    """
    return UiLink(ws.ui_url)


def _start(runtime: WorkspaceRuntime) -> tuple[str, Closable]:
    """The address of a server that was started, and the server, which has `close`."""
    check_extra("ui", "the page of a workspace")
    from millrace.page.page_app import PageSource  # noqa: PLC0415 - needs the extra
    from millrace.page.page_server import PageServer  # noqa: PLC0415 - as above
    from millrace.system.resting_workspace import RestingWorkspace  # noqa: PLC0415 - as above

    runtime.home.look()
    resting = RestingWorkspace(runtime.store, runtime.config, runtime.ledger)
    server = PageServer(PageSource(resting))
    server.start()
    return server.place.url, server
