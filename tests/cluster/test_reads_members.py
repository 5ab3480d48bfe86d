"""Members of coordinated reads as Spark tasks: they come, they are killed, and no row is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.unit.reads.kit import (
    SCHEMA,
    P,
    Q,
    ack,
    alone,
    check_nothing_else_is_shown,
    row,
    write,
)

import millrace as mr
from millrace.config import Config
from millrace.errors import ReadsFailed, UserError
from millrace.reads.api import ReadSession
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead
from millrace.workspace import Workspace

pytestmark = pytest.mark.spark
Connected = Callable[..., AbstractContextManager[SparkSession]]
CONFIG = Config().with_options(reads_lease=60, reads_members_wait=120)
READ = CoordinatedRead("totals", [Binding(name="all", prefix="t", key="key")])
LONG_S = 120.0


def executors(spark: SparkSession) -> list[int]:
    """The processes of this session's executors, and of no other."""
    port = spark.conf.get("spark.driver.port")
    wanted = f"CoarseGrainedExecutorBackend --driver-url .*:{port} "
    found = subprocess.run(["pgrep", "-f", wanted], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def rows_until(session: ReadSession, count: int) -> list[str]:
    """Texts of checkpoint after checkpoint, each committed, until there are so many."""
    found: list[str] = []
    while len(found) < count:
        checkpoint = session.next_checkpoint(LONG_S)
        assert checkpoint is not None, f"{len(found)} of {count} rows came"
        for member in range(session.members):
            for batch in session.batches(member, checkpoint):
                found += batch["what"].to_pylist()
        session.commit(checkpoint)
    return found


def opened(ws: Workspace, members: int) -> ReadSession:
    session = ws.reads(READ, members=members, on_spark=True)
    assert isinstance(session, ReadSession)
    return session


@pytest.mark.slow  # tests/standalone kills a host with members in the test command.
def test_an_executor_killed_mid_transaction_fails_the_session_and_the_next_is_exact(
    connected: Connected, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    conf = {"spark.executorEnv.MILLRACE_FOLDER": str(hosts)}
    with connected("local-cluster[2,2,1024]", conf=conf) as spark:
        ws = mr.open(tmp_path / "mill", spark, config=CONFIG)
        ids = {name: ws.journals.create(f"t/{name}", SCHEMA).id for name in "ab"}
        first = [f"first {number}" for number in range(500)]
        second = [f"second {number}" for number in range(500)]
        for which, name in enumerate("ab"):
            rows = [alone(Q, 10 + n, text) for n, text in enumerate(first) if n % 2 == which]
            write(ws._joined_broker(), f"t/{name}", *rows)
        with pytest.raises(UserError, match="4 members need 5 task slots"):
            opened(ws, 4)
        with opened(ws, 3) as session:
            assert sorted(rows_until(session, len(first))) == sorted(first)
            # Half a transaction is on its way to queues when one of them dies.
            for which, name in enumerate("ab"):
                rows = [row(P, 10 + n, text) for n, text in enumerate(second) if n % 2 == which]
                write(ws._joined_broker(), f"t/{name}", *rows)
            write(ws._joined_broker(), "t/a", ack(P, 1000, [ids["b"]]))
            os.kill(executors(spark)[0], signal.SIGKILL)
            with pytest.raises(ReadsFailed, match=r"member \d failed"):
                session.next_checkpoint(LONG_S)
        write(ws._joined_broker(), "t/b", ack(P, 1000, [ids["a"]]))
        with opened(ws, 3) as session:
            assert sorted(rows_until(session, len(second))) == sorted(second)
            check_nothing_else_is_shown(session, ws._joined_broker(), "t/a", "t/b")
        assert list(hosts.iterdir()) == []  # Also what the killed ones left.
        assert spark.range(8).repartition(4).count() == 8  # All slots are free again.
        ws.close()
