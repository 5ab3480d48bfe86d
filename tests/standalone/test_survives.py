"""The short form: three hosts without a shared disk, on which hosts and drivers are killed.

`make cluster` runs the long one.
"""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.cluster.job_kit import PaidApi, wait_until
from tests.lacking import lacking
from tests.standalone.apps import DatasetApplication, JobApplication, ReadsApplication
from tests.standalone.chaos import Chaos, Kill
from tests.standalone.cluster import Cluster, Host, command_of, hiding, processes

import millrace as mr
from millrace.errors import AgentUnreachable
from millrace.storage.local import LocalStore
from millrace.transport.agent import host_folder

pytestmark = pytest.mark.spark
IMPATIENT = mr.Config().with_options(fetch_retries_max=1, fetch_backoff_ms=10)


@pytest.mark.slow
def test_a_query_goes_on_after_its_driver_and_a_host_were_killed(own: Cluster) -> None:
    app = DatasetApplication(own, "query", and_placed=True)
    with Chaos(app, seed=6) as chaos:
        # With a stage that is finished, the driver has heard where hosts keep what they wrote.
        wait_until(lambda: any(app.mill.glob("shuffle/*/*/manifest.json")), "a finished stage")
        chaos.kill(Kill.DRIVER)
        assert app.wait_for(app.progress() + 3)
        chaos.kill_host(another_host(own, app))
        app.finish()

    assert sum(reused for _, reused in app.report()) > 0, "what the first driver paid for is used"
    assert list(app.mill.glob("shuffle/*/*/*/*/index.bin")) == [], "nothing lies with the driver"
    folders = {path.parents[6] for path in own.layout.root.glob("host-*/mill/*/shuffle/*/*/*/*/*")}
    assert len(folders) > 1, "hosts keep them"
    check_that_outputs_outlive_the_application(own, app)


def another_host(own: Cluster, app: DatasetApplication) -> Host:
    """One that is not the only one to have what the first driver paid for."""
    manifest = json.loads(next(app.mill.glob("shuffle/*/*/manifest.json")).read_text())
    workspace = json.loads((app.mill / "workspace.json").read_text())["id"]
    kept = manifest["chosen"][0]["folder"]
    return next(
        host
        for host in own.hosts
        if host_folder.find_folder(LocalStore(f"{own.layout.host(host.number)}/mill/{workspace}"))
        != kept
    )


def check_that_outputs_outlive_the_application(own: Cluster, app: DatasetApplication) -> None:
    """Agents hand them out with no Spark; without agents they are lost, and not empty."""
    with mr.open(app.mill, config=IMPATIENT) as ws:
        # The last stage that was finished: the driver has read it after all kills.
        done = [path.parts[-3:-1] for path in app.mill.glob("shuffle/*/*/manifest.json")]
        run, stage = max((int(run), int(stage)) for run, stage in done)
        shuffle = ws.open_shuffle(run, stage)
        rows = sum(part.num_rows for part in map(shuffle.read, range(shuffle.partitions)))
        assert rows == sum(choice.rows for choice in shuffle.manifest.chosen) > 0
        for host in own.hosts:
            for pid in agents(host):
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(AgentUnreachable, match="agent"):
            list(map(shuffle.read, range(shuffle.partitions)))


def agents(host: Host) -> list[int]:
    """The agents that tasks started on a host."""
    return [
        pid
        for pid in processes(host.mark)
        if "millrace.transport.agent.agent_process" in command_of(pid)
    ]


@pytest.mark.slow
def test_a_job_pays_once_although_its_driver_and_a_host_are_killed(
    own: Cluster, api: PaidApi
) -> None:
    app = JobApplication(own, "job", api)
    with Chaos(app, seed=7) as chaos:
        assert app.wait_for(12)
        chaos.kill(Kill.DRIVER)
        assert app.wait_for(app.progress() + 12)
        chaos.kill(Kill.HOST)
        app.finish()


@pytest.mark.slow
def test_reads_are_exact_although_a_host_with_members_is_killed(own: Cluster) -> None:
    app = ReadsApplication(own, "reads")
    with Chaos(app, seed=8) as chaos:
        assert app.wait_for(100)
        chaos.kill(Kill.HOST)
        app.finish()


def test_hosts_do_not_see_the_drivers_folder_where_that_can_be_had(own: Cluster) -> None:
    if not hiding():
        lacking("namespaces", "no mount namespaces: hosts are apart by their settings only")
    (own.layout.driver / "seen").touch()
    looked = own.hosts[0].run(["ls", str(own.layout.driver)], "looked")
    assert looked.wait() == 0
    assert (own.layout.root / "looked-0.log").read_text() == ""
