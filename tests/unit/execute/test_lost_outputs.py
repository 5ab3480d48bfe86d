"""Which map tasks are run again after a loss, and how often."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.errors import AgentUnreachable, Corrupt, DataLost
from millrace.execute.lost_outputs import (
    Lost,
    Repairs,
    StageRound,
    decode_lost,
    encode_lost,
    stage_report,
)
from millrace.ids import AttemptId, FolderId, MapTask, QueryId, StageId
from millrace.shuffle.manifest import Choice, Manifest

TO_FIX = (
    "see who removes or changes files of the workspace, or whether its disk fails, then run again"
)


def lost(task: int, *, run: int = 1, kind: str = "DataLost") -> Lost:
    attempt = AttemptId.of(run, 0, task, 1)
    return Lost(
        attempt=attempt, folder=None, kind=kind, text=f"{attempt} is gone\n  to fix: look away"
    )


def manifest(run: int, stage: int, tasks: int) -> Manifest:
    return Manifest(
        query_id=QueryId(run),
        stage_id=StageId(stage),
        created_at_ms=0,
        partitions=1,
        partitioner={},
        schema=pa.schema([("x", pa.int64())]),
        chosen=tuple(
            Choice(
                map_task=MapTask(task),
                attempt=AttemptId.of(run, stage, task, 1),
                folder=None,
                content="",
                rows=1,
                bytes=1,
            )
            for task in range(tasks)
        ),
        partition_rows=(1,),
        partition_bytes=(1,),
    )


def test_a_loss_survives_the_way_from_task_to_driver() -> None:
    given = [
        lost(3),
        Lost(
            attempt=AttemptId.of(2**64 - 1, 0, 7, 2),
            folder=FolderId("ab"),
            kind="AgentUnreachable",
            text="the agent at grpc://a:1 does not answer: «ünïcode»\n\n  to fix: wait",
        ),
    ]

    assert decode_lost(encode_lost(given)) == given


def test_only_the_map_tasks_of_lost_outputs_are_in_doubt() -> None:
    repairs = Repairs(5)

    repairs.on_lost([lost(1), lost(2)], {0: manifest(1, 0, 4), 1: manifest(1, 1, 4)})

    assert repairs.of_stage(0) == {
        1: "map output 1/0/1/1 was lost: 1/0/1/1 is gone",
        2: "map output 1/0/2/1 was lost: 1/0/2/1 is gone",
    }
    assert repairs.of_stage(1) == {}


def test_a_second_loss_of_the_same_map_task_has_the_readers_kind_and_words() -> None:
    repairs = Repairs(5)
    repairs.on_lost([lost(1)], {0: manifest(1, 0, 4)})
    repairs.on_lost([lost(2, run=2)], {0: manifest(2, 0, 4)})

    with pytest.raises(Corrupt) as caught:
        repairs.on_lost([lost(1, run=3, kind="Corrupt")], {0: manifest(3, 0, 4)})

    assert str(caught.value).splitlines() == [
        "3/0/1/1 is gone",
        "  map output: 3/0/1/1",
        "  tried: map task 1 of stage 0 was repaired already, after: 1/0/1/1 is gone",
        f"  to fix: {TO_FIX}",
    ]


def test_a_map_task_is_repaired_again_when_the_next_host_goes_away_too_but_not_without_end() -> (
    None
):
    repairs = Repairs(9, hosts_max=2)
    for run in (1, 2):
        repairs.on_lost([lost(1, run=run, kind="AgentUnreachable")], {0: manifest(run, 0, 4)})
        assert repairs.of_stage(0)[MapTask(1)].startswith(f"map output {run}/0/1/1 was lost")

    with pytest.raises(AgentUnreachable, match="repaired already"):
        repairs.on_lost([lost(1, run=3, kind="AgentUnreachable")], {0: manifest(3, 0, 4)})


@pytest.mark.parametrize("kind", [DataLost, AgentUnreachable])
def test_losses_without_end_end(kind: type[Exception]) -> None:
    repairs = Repairs(2)
    for run in (1, 2):
        repairs.on_lost([lost(run, run=run)], {0: manifest(run, 0, 9)})

    with pytest.raises(kind, match="begun again 2 times already"):
        repairs.on_lost([lost(3, run=3, kind=kind.__name__)], {0: manifest(3, 0, 9)})


def test_a_report_counts_a_task_once_and_says_what_was_run_again() -> None:
    first = StageRound(
        ran={MapTask(0): "not done before", MapTask(1): "not done before"},
        reused=frozenset({MapTask(2), MapTask(3)}),
        seconds=1.0,
    )
    second = StageRound(
        ran={MapTask(1): "lost", MapTask(2): "lost", MapTask(4): "not done before"},
        reused=frozenset({MapTask(0), MapTask(3)}),
        seconds=0.5,
    )

    whole = stage_report([first, second], 5)

    assert (whole.map_tasks, whole.ran, whole.reused, whole.seconds) == (5, 4, 1, 1.5)
    assert whole.again == {1: "lost", 2: "lost"}
    assert str(whole).splitlines() == [
        "4 map tasks run, 1 reused, 1.5 s",
        "  1 run because: lost",
        "  3 run because: not done before",
        "  2 run again because: lost",
    ]
