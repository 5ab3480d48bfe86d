"""Pages as files: one that needs no server, no script and nothing from elsewhere."""

from __future__ import annotations

from markupsafe import Markup

from millrace.page.templating import page, style
from millrace.page.views.job_views import job_page
from millrace.page.views.look import Look
from millrace.system.resting_workspace import RestingWorkspace


def saved_job(workspace: RestingWorkspace, name: str) -> str:
    """The page of a job as it is now."""
    values = job_page(Look(workspace), name, is_saved=True)
    # The style is a file of the package: it holds no text of others.
    saved = {"css": Markup(style())}  # noqa: S704 - see above
    return page("job.html", {"where": workspace.store.root, "saved": saved, **values})
