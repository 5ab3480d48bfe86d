"""Whether a ledger is all that was acknowledged, judged by its mark and by the segments.

What is legal: a ledger that is ahead of its mark. A process may die between a commit and its mark,
and a power cut may take marks that were not synced. What is not: a ledger behind its mark, with
another history than its mark, or with less than its segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from millrace.errors import Corrupt, DataLost
from millrace.journal.embedded.ledger.mark_files import MARK, CommitMark

AcceptLoss = bool | Literal["read_only"]
"""What to do about a ledger that lacks commits: refuse it, go on with the rest, or just read it."""

_NAMED_MAX: Final = 3
_FIX: Final = (
    "to fix: bring the files of the journals back from a copy, all of one moment; or read what is "
    'left with accept_loss="read_only"; or go on without what is missing: '
    "`millrace journal accept-loss WORKSPACE`, or accept_loss=True"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOpening:
    """One opening of the ledger, as the ledger remembers it."""

    id: int
    first_commit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLedger:
    """What a ledger, and the segments beside it, say about themselves."""

    path: str
    version: int
    commit: int
    committed_at_ms: int
    openings: Mapping[int, LedgerOpening]
    """The last ones, by epoch."""
    file_commit: int
    """The last commit in the ledger's file, without its log."""
    file_commit_expected: int
    """What the ledger with its log says of that: at least this one."""
    is_checksum_wrong: bool
    """Whether the file of a closed ledger is not what it was."""
    contradictions: Sequence[str]
    """Journals whose end is not that of their last range."""
    newer_segments: Sequence[str]
    """Segment files that the ledger has not named yet, or that are longer than it says."""
    newest_segment: int
    """The highest number of a segment file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is missing, in words, and above what the ledger goes on if that is accepted."""

    message: str
    is_damage: bool = False
    commit_min: int = 0
    epoch_min: int = 0
    segment_min: int = 0

    def error(self) -> DataLost:
        """The error that opening raises."""
        return (Corrupt if self.is_damage else DataLost)(self.message)


@dataclass(frozen=True, slots=True)
class NoMark:
    """There is no mark to be read: the file is gone, or damaged."""

    is_damaged: bool


def judge(ledger: FoundLedger, mark: CommitMark | NoMark) -> Loss | None:
    """What a ledger lacks; None if nothing is known to be missing."""
    complaint = _complaint(ledger, mark)
    if complaint is None:
        return None
    what, details, is_damage = complaint
    known = mark if isinstance(mark, CommitMark) else CommitMark()
    return Loss(
        message="\n  ".join([what, *details, _FIX]),
        is_damage=is_damage,
        commit_min=known.commit,
        epoch_min=known.epoch,
        segment_min=ledger.newest_segment,
    )


def _complaint(
    ledger: FoundLedger, mark: CommitMark | NoMark
) -> tuple[str, list[str], bool] | None:
    if isinstance(mark, NoMark):
        # Ledgers of version 1 have none.
        if mark.is_damaged or ledger.version > 1:
            state = "is damaged" if mark.is_damaged else "is gone"
            what = f"{MARK} beside {ledger.path} {state}: whether commits are missing is not known"
            return what, [f"found: {_last(ledger)}"], mark.is_damaged
    elif (complaint := _behind(ledger, mark)) is not None:
        return complaint
    if ledger.is_checksum_wrong or ledger.contradictions:
        what = f"ledger {ledger.path} is not what was written"
        details = ledger.contradictions[:_NAMED_MAX] or ["its checksum is not that of its closing"]
        return what, [f"found: {'; '.join(details)}"], True
    if ledger.newer_segments:
        what = f"ledger {ledger.path} is older than its segments: commits are missing"
        named = ", ".join(ledger.newer_segments[:_NAMED_MAX])
        more = len(ledger.newer_segments) - _NAMED_MAX
        also = f" and {more:,} more" if more > 0 else ""
        return what, [f"found: {_last(ledger)}; rows it does not know in {named}{also}"], False
    return None


def _behind(ledger: FoundLedger, mark: CommitMark) -> tuple[str, list[str], bool] | None:
    """Whether the ledger lacks what its mark says was acknowledged."""
    what = f"commits of ledger {ledger.path} are missing"
    acknowledged = f"commit {mark.commit:,} of {_when(mark.committed_at_ms)} was acknowledged"
    if ledger.commit < mark.commit:
        gone = mark.commit - ledger.commit
        since = (
            f"{gone:,} commit{'' if gone == 1 else 's'} since then {'is' if gone == 1 else 'are'}"
        )
        return what, [f"found: {_last(ledger)}; {acknowledged}: {since} missing"], False
    expected = max(mark.file_commit, ledger.file_commit_expected)
    if ledger.file_commit < expected:
        file_content = f"without its log it holds commits up to {ledger.file_commit:,}"
        older = f"the file is an older copy: {file_content}, and it had those up to {expected:,}"
        return what, [f"found: {older}"], False
    if ledger.commit < ledger.file_commit:
        file_content = f"the file alone holds commits up to {ledger.file_commit:,}"
        return what, [f"found: {_last(ledger)}; {file_content}: the log is an older copy"], False
    if mark.epoch and not _is_same_history(ledger, mark):
        folder = ledger.path.rpartition("/")[0]
        marks = f"{folder}/{MARK} or {folder}/segments/{MARK}"
        other = f"the ledger is another one, or went on from an older copy; or {marks} is another's"
        return what, [f"found: {_last(ledger)}; {acknowledged}, and is not in it: {other}"], False
    return None


def _is_same_history(ledger: FoundLedger, mark: CommitMark) -> bool:
    opening = ledger.openings.get(mark.epoch)
    if opening is None or opening.id != mark.opening_id:
        return False
    later = [
        later_opening.first_commit
        for epoch, later_opening in ledger.openings.items()
        if epoch > mark.epoch
    ]
    return mark.commit < min(later, default=mark.commit + 1)


def _last(ledger: FoundLedger) -> str:
    if not ledger.commit:
        return "no numbered commit"
    return f"the last commit is number {ledger.commit:,} of {_when(ledger.committed_at_ms)}"


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
