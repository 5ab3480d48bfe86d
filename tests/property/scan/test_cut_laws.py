"""Laws of cutting files into map tasks and sharing those out to Spark tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from millrace.scan.input_files import InputFile
from millrace.scan.splits import (
    MAP_TASK_COST_BYTES,
    SHARE_BYTES_MIN,
    FileShape,
    MapInput,
    cut,
    share_out,
)

SIZES = st.none() | st.lists(st.integers(0, 50), max_size=12).map(tuple)


@st.composite
def shapes(draw: st.DrawFn) -> list[FileShape]:
    names = draw(st.lists(st.integers(0, 200), unique=True, max_size=25))
    return [shape(name, draw(SIZES)) for name in sorted(names)]


def shape(name: int, groups: tuple[int, ...] | None, mtime_ns: int = 0) -> FileShape:
    size = 5 if groups is None else sum(groups)
    file = InputFile(path=f"/d/{name:03}", size=size, mtime_ns=mtime_ns, ctime_ns=0)
    return FileShape(file=file, row_group_bytes=groups)


def work(inputs: list[MapInput]) -> Counter[tuple[str, int | None]]:
    """Every (file, row group) that is read; a whole file counts as its group None."""
    return Counter(
        (split.file.path, group)
        for one in inputs
        for split in one.splits
        for group in ((None,) if split.row_groups is None else split.row_groups)
    )


TARGET = st.integers(1, 100)


@given(shapes(), TARGET, st.integers(1, 40))
def test_every_row_group_is_read_exactly_once(
    files: list[FileShape], target: int, tasks_max: int
) -> None:
    inputs = cut(files, split_bytes_target=target, map_tasks_max=tasks_max)

    found = work(inputs)
    assert set(found.values()) <= {1}
    for one in files:
        groups = {group for path, group in found if path == one.file.path}
        assert groups in ({None}, set(range(len(one.row_group_bytes or ()))))
    assert len(inputs) <= tasks_max
    assert all(one.splits for one in inputs)


@given(shapes(), TARGET)
def test_pieces_of_a_file_are_even_within_one_row_group(
    files: list[FileShape], target: int
) -> None:
    for one in files:
        inputs = cut([one], split_bytes_target=target, map_tasks_max=1000)
        groups = one.row_group_bytes or ()
        if sum(groups) <= target:
            assert len(inputs) == 1
            continue
        even = sum(groups) / math.ceil(sum(groups) / target)
        for piece in inputs:
            assert piece.bytes <= even + max(groups)
        assert len(inputs) <= math.ceil(sum(groups) / target)


@given(shapes(), TARGET, st.data())
def test_adding_changing_or_removing_a_file_moves_no_other(
    files: list[FileShape], target: int, data: st.DataObject
) -> None:
    limits = {"split_bytes_target": target, "map_tasks_max": 10_000}
    before = cut(files, **limits)
    changed = data.draw(st.integers(0, 200))
    others = [one for one in files if one.file.path != f"/d/{changed:03}"]
    now = [*others, shape(changed, data.draw(SIZES), mtime_ns=9)]

    for after in (cut(others, **limits), cut(now, **limits)):
        kept = {one for one in before if one.splits[0].file.path != f"/d/{changed:03}"}
        assert kept <= set(after)
        assert {o.splits[0].file.path for o in set(after) - kept} <= {f"/d/{changed:03}"}


@given(st.integers(10, 60), st.integers(1, 9), st.integers(-1, 61))
def test_among_many_files_a_new_one_changes_one_group_alone(
    count: int, tasks_max: int, new: int
) -> None:
    limits = {"split_bytes_target": 100, "map_tasks_max": tasks_max}
    files = [shape(2 * name, None) for name in range(count)]
    before = cut(files, **limits)

    more = sorted([*files, shape(abs(2 * new + 1), None)], key=lambda one: one.file.path)
    added = set(cut(more, **limits))
    changed = set(
        cut([replace(files[0], file=replace(files[0].file, size=9)), *files[1:]], **limits)
    )

    assert len(before) <= tasks_max
    assert len(added - set(before)) == 1
    assert len(set(before) - added) <= 1
    assert len(changed - set(before)) == len(set(before) - changed) == 1


@given(
    st.lists(st.integers(0, 1000), max_size=60),
    st.integers(1, 16),
    st.integers(1, 5000),
    st.integers(1, 50),
)
def test_every_map_task_has_one_runner_and_runners_are_even(
    sizes: list[int], slots: int, bytes_max: int, runners_max: int
) -> None:
    shares = share_out(sizes, slots=slots, bytes_max=bytes_max, runners_max=runners_max)

    assert sorted(position for share in shares for position in share) == list(range(len(sizes)))
    assert all(shares)
    assert min(slots, len(sizes), runners_max) <= len(shares) or sum(sizes) > SHARE_BYTES_MIN
    assert len(shares) <= runners_max
    loads = [weight_of(sizes[position] for position in share) for share in shares]
    if loads and len(shares) <= slots:
        # The largest is never more than one map task above the smallest.
        assert max(loads) - min(loads) <= max(weight_of([size]) for size in sizes)


@given(
    st.lists(st.integers(0, 4 * SHARE_BYTES_MIN), min_size=1, max_size=120),
    st.integers(1, 16),
    st.booleans(),
)
def test_no_share_but_a_single_map_task_is_more_than_its_part_of_what_is_left(
    sizes: list[int],
    slots: int,
    in_order: bool,  # noqa: FBT001 - drawn
) -> None:
    shares = share_out(sizes, slots=slots, bytes_max=1 << 62, runners_max=10_000, in_order=in_order)

    assert sorted(position for share in shares for position in share) == list(range(len(sizes)))
    left = weight_of(sizes)
    if left <= slots * SHARE_BYTES_MIN:
        return
    for share in shares:
        load = weight_of(sizes[position] for position in share)
        target = SHARE_BYTES_MIN if in_order else max(SHARE_BYTES_MIN, left // (4 * slots))
        assert len(share) == 1 or load <= target + weight_of([sizes[share[-1]]]) / 2
        left -= load
    if in_order:
        assert [position for share in shares for position in share] == list(range(len(sizes)))


def weight_of(sizes: Iterable[int]) -> int:
    return sum(size + MAP_TASK_COST_BYTES for size in sizes)
