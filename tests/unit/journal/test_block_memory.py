"""Pieces of blocks: no two at a place, and memory that nothing refers to is used again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from millrace.journal.block_memory import BLOCK_BYTES, BlockMemory


def test_memory_that_nothing_refers_to_is_used_again() -> None:
    memory = BlockMemory()
    for _ in range(100):
        memory.piece(BLOCK_BYTES // 2)
    assert memory.nbytes == BLOCK_BYTES


def test_memory_is_held_by_arrays_that_were_made_of_it() -> None:
    memory = BlockMemory()
    piece = memory.piece(8 * 1000)
    np.frombuffer(piece, np.int64)[:] = np.arange(1000)
    column = pa.Array.from_buffers(pa.int64(), 1000, [None, pa.py_buffer(piece)])
    part = column.slice(10, 5)
    del piece, column
    others = [memory.piece(BLOCK_BYTES // 4) for _ in range(8)]
    for other in others:
        np.frombuffer(other, np.uint8)[:] = 0xFF
    assert part.to_pylist() == [10, 11, 12, 13, 14]


def test_a_large_piece_has_a_block_of_its_own() -> None:
    memory = BlockMemory()
    piece = memory.piece(BLOCK_BYTES + 1)
    assert len(piece) == BLOCK_BYTES + 1
    assert memory.nbytes == 2 * BLOCK_BYTES


def test_unused_blocks_are_given_back() -> None:
    memory = BlockMemory()
    pieces = [memory.piece(BLOCK_BYTES) for _ in range(3)]
    memory.trim()
    assert memory.nbytes == 3 * BLOCK_BYTES
    del pieces[0]
    memory.trim()
    assert memory.nbytes == 2 * BLOCK_BYTES
    pieces.clear()
    memory.trim()
    assert memory.nbytes == 0


def test_no_two_pieces_share_a_byte() -> None:
    rng, memory = np.random.default_rng(5), BlockMemory()
    held: list[tuple[int, memoryview]] = []
    for number in range(600):
        if held and rng.random() < 0.45:
            held.pop(int(rng.integers(len(held))))
        piece = memory.piece(int(rng.choice([0, 1, 63, 64, 65, 5_000, 300_000])))
        mark = number % 251
        np.frombuffer(piece, np.uint8)[:] = mark
        held.append((mark, piece))
        if number % 100 == 0:
            assert all((np.frombuffer(p, np.uint8) == m).all() for m, p in held)
    size = sum(len(piece) for _, piece in held)
    assert memory.nbytes <= 2 * size + 4 * BLOCK_BYTES, "spans become one again"
