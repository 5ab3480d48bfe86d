"""Workers with no shared disk: each host's agent serves what its tasks wrote."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cluster.kit import all_values, values, write_files

import millrace as mr
from millrace.errors import AgentUnreachable

pytestmark = pytest.mark.spark
Standalone = Callable[[Sequence[dict[str, str]]], AbstractContextManager[str]]
Connected = Callable[[str], AbstractContextManager[SparkSession]]
FILES = 8
ALL = all_values(FILES)
IMPATIENT = mr.Config().with_options(fetch_retries_max=1, fetch_backoff_ms=10)


def agents(tmp_path: Path) -> list[int]:
    return [json.loads(path.read_bytes())["pid"] for path in tmp_path.glob("host-*/*/agent.json")]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[dict[str, str]]]:
    environments = [
        {
            "MILLRACE_FOLDER": str(tmp_path / f"host-{number}"),
            "SPARK_WORKER_DIR": str(tmp_path / f"work-{number}"),
        }
        for number in range(2)
    ]
    yield environments
    for pid in agents(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_outputs_lie_on_their_hosts_and_outlive_the_application(
    standalone: Standalone, connected: Connected, hosts: list[dict[str, str]], tmp_path: Path
) -> None:
    source = write_files(tmp_path / "in", FILES)
    mill = tmp_path / "mill"
    with standalone(hosts) as master:
        with connected(master) as spark:
            ws = mr.open(mill, spark, config=IMPATIENT)
            done = ws.shuffle(source, keys="k", partitions=4)

            assert done.report.ran == FILES
            assert len({choice.folder for choice in done.manifest.chosen} - {None}) == 2
            assert list(mill.glob("shuffle/*/*/*/*/index.bin")) == []
            assert len(list(tmp_path.glob("host-*/*/shuffle/*/*/*/*/index.bin"))) == FILES
            assert values(done) == ALL
            assert done.verify().ok
            frame = ws.to_spark(done)
            placed = frame.selectExpr("spark_partition_id() p", "pmod(hash(k), 4) h", "v").toArrow()
            assert sorted(placed["v"].to_pylist()) == ALL
            assert placed["p"].to_pylist() == placed["h"].to_pylist()
            ws.close()

        later = mr.open(mill, config=IMPATIENT).open_shuffle(done.query_id)
        assert values(later) == ALL

        with connected(master) as spark:
            ws = mr.open(mill, spark, config=IMPATIENT)
            again = ws.shuffle(source, keys="k", partitions=4)
            assert (again.report.ran, again.report.reused) == (0, FILES)
            assert values(again) == ALL

            for pid in agents(tmp_path):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(AgentUnreachable, match="agent"):
                values(again)
            mended = ws.shuffle(source, keys="k", partitions=4)
            assert values(mended) == ALL
            ws.close()
