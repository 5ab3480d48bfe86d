"""Examples of cutting inputs and sharing them out; the laws are in tests/property/scan."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise

import pytest

from millrace.limits import GIB, MIB
from millrace.scan.input_files import InputFile
from millrace.scan.splits import FileShape, FileSplit, MapInput, cut, share_out


def shape(name: str, groups: tuple[int, ...] | None, **more: object) -> FileShape:
    size = 7 if groups is None else sum(groups)
    file = InputFile(path=f"/d/{name}", size=size, mtime_ns=1, ctime_ns=1, **more)  # type: ignore[arg-type]
    return FileShape(file=file, row_group_bytes=groups)


def pieces(inputs: list[MapInput]) -> list[tuple[int, ...] | None]:
    return [split.row_groups for one in inputs for split in one.splits]


def test_a_small_file_is_one_map_task() -> None:
    assert pieces(cut([shape("a", (4, 4))], split_bytes_target=8, map_tasks_max=10)) == [None]


def test_a_large_file_is_cut_into_even_pieces_of_whole_row_groups() -> None:
    inputs = cut([shape("a", (4,) * 8)], split_bytes_target=8, map_tasks_max=10)

    assert pieces(inputs) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [one.bytes for one in inputs] == [8, 8, 8, 8]


def test_a_row_group_that_is_too_large_stays_whole() -> None:
    inputs = cut([shape("a", (100, 1, 1))], split_bytes_target=10, map_tasks_max=100)

    assert sorted(n for groups in pieces(inputs) for n in groups or ()) == [0, 1, 2]
    assert inputs[0].bytes == 100


def test_a_file_that_cannot_be_cut_is_one_map_task_whatever_its_size() -> None:
    inputs = cut([shape("a.csv", None)], split_bytes_target=1, map_tasks_max=10)

    assert pieces(inputs) == [None]
    assert inputs[0].bytes == 7


def test_an_identity_says_file_version_and_part() -> None:
    (one,) = cut([shape("a", (4, 4))], split_bytes_target=8, map_tasks_max=10)
    assert one.identity() == [
        {"path": "/d/a", "size": 8, "mtime_ns": 1, "ctime_ns": 1, "row_groups": None}
    ]


def test_recent_has_the_files_that_times_do_not_tell_and_no_others() -> None:
    recent = shape("a", None, content="11")
    by_bytes = shape("b", None, content="22", by_content=True)
    (first, second) = cut([recent, by_bytes], split_bytes_target=8, map_tasks_max=10)

    assert first.recent() == {"/d/a": "11"}
    assert second.recent() == {}
    assert second.identity()[0]["content"] == "22"


def test_largest_first_keeps_shares_even() -> None:
    sizes = [size * MIB for size in (1, 1, 1, 21)]
    shares = share_out(sizes, slots=2, bytes_max=100, runners_max=10)

    assert shares == [[3], [0, 1, 2]]


@pytest.mark.parametrize("tasks", [64, 512, 4096])
def test_shares_shrink_and_are_few_however_many_map_tasks_there_are(tasks: int) -> None:
    sizes = [16 * MIB] * tasks

    shares = share_out(sizes, slots=4, bytes_max=1 << 40, runners_max=10_000)
    lengths = [len(share) for share in shares]

    assert all(later <= earlier for earlier, later in pairwise(lengths))
    assert lengths[0] == round(tasks / 16)  # A quarter of what each slot would do.
    assert lengths[-1] <= 2
    assert len(shares) <= 16 * math.log2(tasks)


def test_large_map_tasks_have_a_spark_task_each() -> None:
    shares = share_out([256 * MIB] * 16, slots=4, bytes_max=4 * GIB, runners_max=10_000)

    assert shares == [[number] for number in range(16)]


def test_first_rows_are_in_the_first_and_small_shares() -> None:
    sizes = [16 * MIB] * 64
    shares = share_out(sizes, slots=2, bytes_max=4 * GIB, runners_max=10_000, in_order=True)

    assert [position for share in shares for position in share] == list(range(64))
    assert max(map(len, shares)) == 2


@pytest.mark.parametrize("slots", [4, 16, 64])
@pytest.mark.parametrize(("tasks", "size"), [(64, 256), (64, 64), (256, 16), (1024, 4)])
def test_one_slot_at_a_quarter_of_its_speed_delays_a_stage_by_a_third_at_most(
    slots: int, tasks: int, size: int
) -> None:
    sizes = [size * MIB] * (tasks * slots // 4)
    shares = share_out(sizes, slots=slots, bytes_max=4 * GIB, runners_max=10_000)

    even = seconds_of(shares, sizes, [1.0] * slots)

    assert even <= 1.1 * sum(sizes) / MIB / slots
    for slow in (0, slots - 1):
        speeds = [0.25 if slot == slow else 1.0 for slot in range(slots)]
        assert seconds_of(shares, sizes, speeds) <= 1.33 * even


def seconds_of(shares: list[list[int]], sizes: list[int], speeds: list[float]) -> float:
    """When the last of these slots ends, each of which pulls the next share when it is free."""
    free = [(0.0, slot) for slot in range(len(speeds))]
    for share in shares:
        began, slot = heapq.heappop(free)
        took = sum(sizes[position] for position in share) / MIB / speeds[slot]
        heapq.heappush(free, (began + took, slot))
    return max(free)[0]


def test_nothing_to_share_is_no_runner() -> None:
    assert share_out([], slots=4, bytes_max=1, runners_max=10) == []


def test_splits_of_equal_content_are_equal() -> None:
    file = shape("a", (1,)).file

    assert FileSplit(file=file, row_groups=(0,), bytes=1) == FileSplit(
        file=file, row_groups=(0,), bytes=1
    )
