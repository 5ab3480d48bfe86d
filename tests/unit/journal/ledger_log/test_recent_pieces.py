"""Pieces of files that the owner keeps in front of a bucket."""

from __future__ import annotations

from millrace.journal.ledger_log.store_disk import S3_KEPT_PIECE_BYTES_MAX, RecentPieces


def test_a_piece_answers_for_every_part_of_it_and_for_nothing_else() -> None:
    pieces = RecentPieces()
    pieces.keep("a", 10, b"0123456789")

    assert pieces.get("a", 10, 10) == b"0123456789"
    assert pieces.get("a", 12, 3) == b"234"
    assert pieces.get("a", 9, 2) is None
    assert pieces.get("a", 18, 3) is None
    assert pieces.get("b", 10, 1) is None

    pieces.forget("a")
    assert pieces.get("a", 12, 3) is None
    assert pieces.nbytes == 0


def test_no_more_is_kept_than_the_limit_and_what_was_used_last_stays() -> None:
    pieces = RecentPieces(bytes_max=30)
    for name in ("a", "b", "c"):
        pieces.keep(name, 0, b"x" * 10)
    assert pieces.get("a", 0, 10) is not None

    pieces.keep("d", 0, b"x" * 10)

    assert pieces.nbytes == 30
    assert pieces.get("b", 0, 1) is None
    assert [pieces.get(name, 0, 1) for name in ("a", "c", "d")] == [b"x"] * 3


def test_a_large_piece_is_not_kept_and_another_one_of_a_file_takes_its_place() -> None:
    pieces = RecentPieces()
    pieces.keep("a", 0, b"abc")
    pieces.keep("a", 5, b"fg")
    assert (pieces.get("a", 0, 3), pieces.get("a", 5, 2), pieces.nbytes) == (None, b"fg", 2)

    pieces.keep("a", 0, bytes(S3_KEPT_PIECE_BYTES_MAX + 1))
    assert (pieces.get("a", 5, 2), pieces.nbytes) == (None, 0)
