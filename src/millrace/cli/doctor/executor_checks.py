"""Looks at Spark's executors: their versions, their clocks, and whether they reach the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.cli.doctor.doctor_findings import DoctorFinding, fine, missing, note, of_error
from millrace.cli.doctor.store_checks import clock
from millrace.config import Config
from millrace.errors import MillraceError
from millrace.spark.versions.executor_look import ExecutorLook, look, own_versions, session_at

_SHIP: Final = "install the same versions on all hosts: docs/deploy.md says how"


def look_at_spark(master: str | None, remote: str | None) -> Iterator[DoctorFinding]:
    """A session at this address, and its executors."""
    try:
        spark = session_at(master, remote)
    except Exception as error:  # noqa: BLE001 - Spark's errors are of many kinds, and are told
        yield of_error("Spark", error, "look at Spark's own log, and at the address")
        return
    try:
        looked = look(spark, Config())
    except (MillraceError, OSError, ImportError) as error:
        yield of_error("executors", error, "look at Spark's own log")
    except Exception as error:  # noqa: BLE001 - as above
        words = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
        yield missing("executors", f"a task failed: {words}", _SHIP)
    else:
        yield from judge(looked, own_versions())
    finally:
        spark.stop()


def judge(looked: ExecutorLook, own: dict[str, str]) -> Iterator[DoctorFinding]:
    """The reports of tasks beside this process's versions and clock."""
    yield fine("Spark", f"{looked.spark}, a session is there")
    reports = looked.reports
    hosts = {report.host for report in reports}
    others = {
        f"{name} {version} on {report.host}, {own[name]} here"
        for report in reports
        for name, version in report.versions.items()
        if own.get(name) != version
    }
    if others:
        yield missing("executors", "; ".join(sorted(others)), _SHIP)
    else:
        same = ", ".join(f"{name} {version}" for name, version in own.items())
        yield fine("executors", f"tasks: {len(reports)}, hosts: {len(hosts)}, all with {same}")
    behind = min(report.began_ms - looked.sent_ms for report in reports)
    ahead = max(report.began_ms - looked.done_ms for report in reports)
    yield clock("clocks of executors", behind if behind < 0 else max(ahead, 0))
    unreached = sorted({f"{report.host}: {report.reach}" for report in reports if report.reach})
    if unreached:
        found = f"the driver is not reached from {'; '.join(unreached)}"
        fix = "set MILLRACE_AGENT_HOST to an address of this host that executors reach"
        yield note("ports to executors", found, fix)
    else:
        yield fine("ports to executors", "every task reached a port of this process")
