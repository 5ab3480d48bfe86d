"""What tasks report reaches the driver as it was."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from tests.unit.transport.agent_kit import make_host

from millrace.execute.lost_outputs import StageRound, stage_report
from millrace.execute.tasks.task_results import (
    MapTaskTooLarge,
    Outcome,
    Result,
    decode_results,
    encode_result,
)
from millrace.ids import AttemptId, FolderId, MapTask
from millrace.shuffle.fetch_counts import FetchCounts


def test_results_come_back_with_what_was_fetched(tmp_path: Path) -> None:
    index = make_host(tmp_path).write(AttemptId.of(1, 0, 7, 1), [1, 2, 3])
    counts = FetchCounts(bytes=10, ranges=2, calls=1, waits=1, waited_s=0.5, hosts=("a" * 32,))
    sent: list[Outcome] = [
        Result(
            map_task=MapTask(7), folder=FolderId("a" * 32), agent="grpc://h:1", ran=True,
            index=index, fetched=counts,
        ),
        Result(map_task=MapTask(7), folder=None, agent=None, ran=False, index=index),
        MapTaskTooLarge(MapTask(8), "too large"),
    ]  # fmt: skip

    assert decode_results(pa.Table.from_batches([encode_result(result) for result in sent])) == sent


def test_the_report_adds_up_what_was_fetched() -> None:
    first = FetchCounts(bytes=2048, ranges=2, calls=1, hosts=("a", "b"))
    second = FetchCounts(bytes=1024, ranges=1, calls=1, waits=3, waited_s=1.25, hosts=("b",))
    rounds = [
        StageRound(ran={}, reused=frozenset(), seconds=1.0, fetched=counts)
        for counts in (first, second)
    ]

    report = stage_report(rounds, 0)

    assert report.fetched.hosts == ("a", "b")
    assert str(report).endswith(
        "fetched 3.0 KiB in 3 ranges from 2 hosts, 2 calls; 3 waits, 1.25 s"
    )
    assert "fetched" not in str(stage_report([], 0))
