"""The short form: three hosts without a shared disk, on which hosts and drivers are killed.

`make cluster` runs the long one.
"""

from __future__ import annotations

import os
import signal

import pytest
from tests.cluster.job_kit import PaidApi
from tests.standalone.apps import DatasetApplication, JobApplication, ReadsApplication
from tests.standalone.chaos import Chaos, Kill
from tests.standalone.cluster import Cluster, Host, command_of, hiding, processes

import millrace as mr
from millrace.errors import AgentUnreachable
from millrace.ids import StageId
from millrace.shuffle import layout
from millrace.shuffle.store import LocalStore
from millrace.transport import hosted

pytestmark = pytest.mark.spark
IMPATIENT = mr.Config().with_options(fetch_retries_max=1, fetch_backoff_ms=10)


def test_a_query_goes_on_after_its_driver_and_a_host_were_killed(own: Cluster) -> None:
    app = DatasetApplication(own, "query")
    chaos = Chaos(app, seed=6)
    app.start()
    assert app.wait_for(5)
    chaos.kill(Kill.DRIVER)
    assert app.wait_for(app.progress() + 3)
    chaos.kill(Kill.HOST)
    app.finish()
    chaos.close()

    assert sum(reused for _, reused in app.report()) > 0, "what the first driver paid for is used"
    assert list(app.mill.glob("shuffle/*/*/*/*/index.bin")) == [], "nothing lies with the driver"
    folders = {path.parents[6] for path in own.layout.root.glob("host-*/mill/*/shuffle/*/*/*/*/*")}
    assert len(folders) == len(own.hosts), "each host keeps some"
    check_that_outputs_outlive_the_application(own, app)


def check_that_outputs_outlive_the_application(own: Cluster, app: DatasetApplication) -> None:
    """Agents hand them out with no Spark; without agents they are lost, and not empty."""
    with mr.open(app.mill, config=IMPATIENT) as ws:
        shuffle = ws.open_shuffle(first_finished(ws))
        folders = {
            hosted.find_folder(LocalStore(f"{own.layout.host(host.number)}/mill/{ws.id}"))
            for host in own.hosts
            if agents(host)
        }
        there = [choice for choice in shuffle.manifest.chosen if choice.folder in folders]
        assert there
        for choice in there:
            shuffle.check(choice, range(shuffle.partitions))
        for host in own.hosts:
            for pid in agents(host):
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(AgentUnreachable, match="agent"):
            shuffle.read(0)


def first_finished(ws: mr.Workspace) -> int:
    """The first run whose first stage was finished."""
    return next(
        run.query_id
        for run in ws.runs()
        if ws.store.read(layout.manifest_path(run.query_id, StageId(0)))
    )


def agents(host: Host) -> list[int]:
    """The agents that tasks started on a host."""
    return [pid for pid in processes(host.mark) if "millrace.transport.agent" in command_of(pid)]


def test_a_job_pays_once_although_its_driver_and_a_host_are_killed(
    own: Cluster, api: PaidApi
) -> None:
    app = JobApplication(own, "job", api)
    chaos = Chaos(app, seed=7)
    app.start()
    assert app.wait_for(12)
    chaos.kill(Kill.DRIVER)
    assert app.wait_for(app.progress() + 12)
    chaos.kill(Kill.HOST)
    app.finish()
    chaos.close()


def test_reads_are_exact_although_a_host_with_members_is_killed(own: Cluster) -> None:
    app = ReadsApplication(own, "reads")
    chaos = Chaos(app, seed=8)
    app.start()
    assert app.wait_for(100)
    chaos.kill(Kill.HOST)
    app.finish()
    chaos.close()


def test_hosts_do_not_see_the_drivers_folder_where_that_can_be_had(own: Cluster) -> None:
    if not hiding():
        pytest.skip("this machine has no mount namespaces: hosts are apart by their settings only")
    (own.layout.driver / "seen").touch()
    looked = own.hosts[0].run(["ls", str(own.layout.driver)], "looked")
    assert looked.wait() == 0
    assert (own.layout.root / "looked-0.log").read_text() == ""
