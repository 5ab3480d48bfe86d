from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from millrace.errors import UnsupportedType, UserError
from millrace.keys import (
    BroadcastPartitioner,
    CustomPartitioner,
    HashPartitioner,
    RoundRobinPartitioner,
    split,
    split_stream,
)
from millrace.keys.split import UNMOVED_BYTES_MIN


@pytest.fixture(params=["1", "0"], ids=["native", "fallback"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_NATIVE", request.param)


def odd_even(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    parity: npt.NDArray[np.int64] = rows["n"].to_numpy() % 2
    return parity


def test_each_partition_is_a_slice_in_input_order() -> None:
    rows = pa.record_batch({"n": [5, 2, 7, 4, 1]})
    done = split(rows, CustomPartitioner(odd_even, 3), 0)
    assert done.partitions == 3
    assert [done.part(p)["n"].to_pylist() for p in range(3)] == [[2, 4], [5, 7, 1], []]
    assert [done.rows(p) for p in range(3)] == [2, 3, 0]
    assert done.offsets.tolist() == [0, 2, 5, 5]
    assert done.nbytes == rows.nbytes


def test_a_slice_is_not_a_copy() -> None:
    done = split(pa.record_batch({"n": [5, 2, 7, 4, 1]}), CustomPartitioner(odd_even, 2), 0)
    whole, part = done.batch["n"].buffers()[1], done.part(1)["n"].buffers()[1]
    assert part.address == whole.address


def test_one_partition_takes_the_batch_as_it_is() -> None:
    rows = pa.record_batch({"n": [1, 2]})
    assert split(rows, HashPartitioner("n", 1), 0).batch is rows


def test_a_broadcast_has_all_rows_in_each_partition() -> None:
    rows = pa.record_batch({"n": [1, 2]})
    done = split(rows, BroadcastPartitioner(3), 0)
    assert [done.part(p).equals(rows) for p in range(3)] == [True] * 3
    assert [done.rows(p) for p in range(3)] == [2, 2, 2]


def test_a_table_of_many_chunks_is_split_as_one() -> None:
    table = pa.table({"n": pa.chunked_array([[1, 2], [3], []], pa.int64())})
    done = split(table, CustomPartitioner(odd_even, 2), 0)
    assert done.part(1)["n"].to_pylist() == [1, 3]
    empty = split(table.slice(0, 0), RoundRobinPartitioner(2), 0)
    assert [empty.rows(p) for p in range(2)] == [0, 0]


def test_every_kind_of_column_passes_through() -> None:
    texts = ["x", None, "y" * 40, "x"]
    storage = pa.array([b"0" * 16, None, b"1" * 16, b"2" * 16], pa.binary(16))
    rows = pa.record_batch(
        {
            "n": [1, 2, 3, 4],
            "list": [[1], None, [], [2, 3]],
            "struct": [{"a": 1, "b": None}, None, {"a": 2, "b": "z"}, {"a": 3, "b": ""}],
            "map": pa.array([[("k", 1)], None, [], []], pa.map_(pa.string(), pa.int64())),
            "dictionary": pa.array(texts).dictionary_encode(),
            "view": pa.array(texts, pa.string_view()),
            "bytes_view": pa.array(texts).cast(pa.binary_view()),
            "fixed_list": pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
            "list_view": pa.array([[1], None, [], [2]], pa.list_view(pa.int64())),
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), storage),
            "nothing": pa.nulls(4),
            "time": pa.array([1, 2, None, 3], pa.time64("us")),
        }
    )
    done = split(rows, CustomPartitioner(odd_even, 2), 0)
    assert done.batch.schema == rows.schema
    assert done.part(0).to_pylist() == [rows.to_pylist()[1], rows.to_pylist()[3]]
    assert done.part(1).to_pylist() == [rows.to_pylist()[0], rows.to_pylist()[2]]
    done.batch.validate(full=True)


def test_a_column_that_arrow_cannot_reorder_is_named() -> None:
    runs = pc.run_end_encode(pa.array([1, 1, 2]))
    rows = pa.record_batch({"n": [1, 2, 3], "runs": runs})
    with pytest.raises(UnsupportedType, match="column 'runs' cannot be split"):
        split(rows, CustomPartitioner(odd_even, 2), 0)


@pytest.mark.slow
def test_a_table_that_does_not_fit_one_batch_is_refused() -> None:
    gibibyte = pa.array([b"x" * 2**20]).take(pa.array(np.zeros(1024, np.int64)))
    table = pa.table({"n": pa.chunked_array([gibibyte] * 2)})
    with pytest.raises(UserError, match="use split_stream, or cast"):
        split(table, RoundRobinPartitioner(2), 0)


def test_more_rows_than_32_bits_count_are_refused() -> None:
    with pytest.raises(UserError, match="cannot split 2147483648 rows at once"):
        split(pa.table({"n": pa.nulls(2**31)}), RoundRobinPartitioner(2), 0)


def test_a_stream_of_small_batches_is_gathered() -> None:
    batches = [pa.record_batch({"n": [n, n + 1]}) for n in range(0, 20, 2)]
    splits = list(split_stream(batches, RoundRobinPartitioner(2), gather_bytes=10**6))
    assert len(splits) == 1
    assert splits[0].part(1)["n"].to_pylist() == list(range(1, 20, 2))


def test_a_stream_never_holds_much_more_than_it_may() -> None:
    batches = [pa.record_batch({"n": np.arange(1000)}), pa.record_batch({"n": np.arange(10)})] * 2
    splits = list(split_stream(batches, RoundRobinPartitioner(2), gather_bytes=1400))
    assert max(done.batch.num_rows for done in splits) <= 100
    assert sum(done.batch.num_rows for done in splits) == 2020


def test_turns_go_on_from_split_to_split() -> None:
    batches = [pa.record_batch({"n": list(range(begin, begin + 5))}) for begin in (1, 6, 11)]
    splits = list(split_stream(batches, RoundRobinPartitioner(3), gather_bytes=80, first_row=1))
    rows = [n for done in splits for n in done.part(0)["n"].to_pylist()]
    assert len(splits) > 1
    assert sorted(rows) == [3, 6, 9, 12, 15]


def test_a_stream_without_rows_has_no_splits() -> None:
    empty = pa.record_batch({"n": pa.array([], pa.int64())})
    assert list(split_stream([empty, empty], RoundRobinPartitioner(3), 100)) == []


def test_large_batches_of_one_partition_are_not_copied() -> None:
    rows = 8 * UNMOVED_BYTES_MIN // 8
    large = pa.record_batch({"v": np.arange(rows)})
    small = pa.record_batch({"v": np.arange(3)})
    splits = list(split_stream([small, large, small, small], RoundRobinPartitioner(1), 1 << 30))

    assert [part.batch.num_rows for part in splits] == [rows + 3, 6]
    splits = list(split_stream([large, large], RoundRobinPartitioner(1), 1 << 30))
    assert [part.batch["v"].buffers()[1].address for part in splits] == [
        large["v"].buffers()[1].address
    ] * 2
