"""Batches under kills: none made twice, no result lost or doubled."""

from __future__ import annotations

import os

import pytest
from tests.unit.pipeline.batches.batch_world import World

from millrace.pipeline.batches.batch_machine import (
    BatchMachine,
    BatchRules,
    CallRows,
    EndBatchTurn,
    FetchResults,
    FindBatch,
    LookAtBatch,
    MakeBatch,
    PublishRows,
    ReadNewRows,
    ReadRowsAgain,
    RecordBatch,
    RowFate,
)
from millrace.pipeline.batches.batch_records import (
    BatchRecord,
    BatchRecordKind,
    from_row,
    outstanding,
    to_rows,
)
from millrace.pipeline.core.unit_choice import TurnEnd

RULES = BatchRules(name="u", settle_us=60_000_000)


def test_a_batch_is_recorded_made_recorded_and_awaited() -> None:
    machine = BatchMachine(RULES, None, at=3)

    assert machine.on_start() == [ReadNewRows()]
    (record,) = machine.on_rows([3, 5], 8, 100)
    assert isinstance(record, RecordBatch)
    assert (record.record.kind, record.record.first, record.record.next) == ("intent", 3, 8)
    assert machine.on_recorded() == [MakeBatch(record.record, (0, 1))]
    (made,) = machine.on_made("b1", 200)
    assert isinstance(made, RecordBatch)
    assert (made.record.kind, made.record.batch, made.record.key) == (
        "made",
        "b1",
        record.record.key,
    )
    assert machine.on_recorded() == [LookAtBatch("b1")]
    assert machine.on_looked("in work", "", 300) == [EndBatchTurn(TurnEnd.WAITING)]


def record(kind: str, **more: object) -> BatchRecord:
    given = {
        "at_us": 100,
        "first": 3,
        "next": 8,
        "key": "u-3-8-1-100",
        "batch": "",
        "rows": 2,
        "journal": "",
    }
    return BatchRecord(kind=BatchRecordKind(kind), **given | more)  # type: ignore[arg-type]


def test_an_intent_without_an_id_is_looked_for_before_it_is_made() -> None:
    machine = BatchMachine(RULES, record("intent"), at=3)

    assert machine.on_start() == [ReadRowsAgain(8)]
    assert machine.on_rows_again([3, 5], 8, 200) == [FindBatch(record("intent"))]
    early = machine.on_found(None, 59_000_000, is_sure=True)
    assert early == [EndBatchTurn(TurnEnd.WAITING)], "the request may still be on its way"
    unsure = machine.on_found(None, 99_000_000, is_sure=False)
    assert unsure == [EndBatchTurn(TurnEnd.WAITING)]
    assert machine.on_found(None, 99_000_000, is_sure=True) == [
        RecordBatch(record("intent", at_us=99_000_000))
    ], "from now on it may be on its way again"
    assert machine.on_recorded() == [MakeBatch(record("intent", at_us=99_000_000), (0, 1))]


def test_results_in_part_are_published_and_the_rest_is_asked_again() -> None:
    machine = BatchMachine(RULES, record("made", batch="b1"), at=3)
    machine.on_start()
    machine.on_rows_again([3, 5, 6], 8, 200)

    assert machine.on_looked("ended", "", 300) == [FetchResults(("b1",))]
    fates = {0: RowFate.ANSWERED, 1: RowFate.OPEN, 2: RowFate.ANSWERED}
    assert machine.on_results(fates, 400) == [PublishRows(1)]
    (again,) = machine.on_published(500)
    assert isinstance(again, RecordBatch)
    assert (again.record.first, again.record.earlier, again.record.attempt) == (5, ("b1",), 2)
    assert machine.on_recorded() == [MakeBatch(again.record, (1,))]


def test_few_rows_are_asked_one_by_one() -> None:
    machine = BatchMachine(BatchRules(name="u", rows_min=10), None, at=0)
    machine.on_start()
    assert machine.on_rows(list(range(9)), 9, 1) == [CallRows()]


def test_rows_that_were_filtered_out_are_passed_over() -> None:
    machine = BatchMachine(RULES, None, at=3)
    machine.on_start()
    assert machine.on_rows([], 9, 1) == [PublishRows(0)]
    assert machine.on_published(2) == [EndBatchTurn(TurnEnd.OVER)]
    assert BatchMachine(RULES, None, at=9).on_rows([], 9, 1) == [EndBatchTurn(TurnEnd.OVER)]


def test_a_row_without_a_question_is_in_no_batch() -> None:
    machine = BatchMachine(RULES, None, at=0)
    machine.on_start()
    (record,) = machine.on_rows([0, 1, 2], 3, 1, frozenset({1}))
    assert isinstance(record, RecordBatch)
    assert machine.on_recorded() == [MakeBatch(record.record, (0, 2))]


def test_a_record_is_read_as_it_was_written_and_counts_beyond_the_offset() -> None:
    written = record("made", batch="b2", earlier=("b0", "b1"), attempt=3, server="{}")
    (row,) = to_rows([written]).to_pylist()

    assert from_row(row) == written
    assert outstanding(written, 7) == written
    assert outstanding(written, 8) is None
    assert outstanding(None, 0) is None


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_batch_is_made_twice_and_no_result_is_lost_or_doubled(first: int) -> None:
    worlds = [World(seed) for seed in range(first, first + 100)]
    for world in worlds:
        world.run()
    assert sum(world.kills for world in worlds) > 100


@pytest.mark.slow
def test_nor_is_one_under_ten_thousand_seeds_of_kills() -> None:
    begin = int(os.environ.get("MILLRACE_BATCH_FIRST", "1000"))
    kills = 0
    for seed in range(begin, begin + 10_000):
        world = World(seed)
        world.run()
        kills += world.kills
    assert kills > 10_000
