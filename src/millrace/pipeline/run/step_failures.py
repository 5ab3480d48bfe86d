"""Makes the error messages of runs that cannot go on. Pure."""

from __future__ import annotations

from millrace.errors import MillraceError, StepFailed
from millrace.pipeline.core.job_events import JobEvent, JobEventKind
from millrace.pipeline.report.job_report import HINTS


def cut_off(job: str, error: MillraceError) -> MillraceError:
    """The error for a run that lost what it needs: Spark, the journals or their storage."""
    indented = "\n    ".join(str(error).splitlines())
    return type(error)(
        f"job {job!r} was cut off on the way\n  found: {indented}\n"
        f"  to fix: {HINTS['lost']}; it goes on where it stopped"
    )


def step_failed(job: str, event: JobEvent) -> StepFailed:
    """The error for an event that ends a run."""
    detail = event.detail
    where = ""
    if detail.get("journal") is not None:
        row = f", row {detail['offset']}" if detail.get("offset") is not None else ""
        where = f"\n  at: {detail['journal']}{row}"
    if event.happened is JobEventKind.HELD:
        return StepFailed(
            f"step {event.step!r} of job {job!r} has calls in doubt, and is told to hold"
            f"{where}\n  found: {detail.get('error', 'a worker died in the middle of calls')}\n"
            "  to fix: look whether the calls were made, then run with on_doubt='retry' or 'skip'"
        )
    text = f"step {event.step!r} of job {job!r} gave up{where}\n  {detail.get('error', '')}"
    if detail.get("traceback"):
        text += "\n" + str(detail["traceback"]).rstrip()
    return StepFailed(
        f"{text}\n  to fix: repair it and run the job again; it goes on where it stopped. Or let\n"
        "  the step pass over such rows with on_error='dead_letter' or 'skip'"
    )
