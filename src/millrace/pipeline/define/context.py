"""The context of a call, for the user's function. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.pipeline.core.hop_rows import batch_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Given to functions that have a parameter `context`.

    Example:
        >>> def caption(row: dict, context: mr.Context) -> dict:
        ...     return {"path": row["path"], "key": context.key}  # a paid API would get the key
        >>> context = mr.Context(job="captions", step="caption", keys=("c4",))
        >>> caption({"path": "a.txt"}, context)
        {'path': 'a.txt', 'key': 'c4'}
    """

    job: str
    step: str
    keys: tuple[str, ...]
    """A key for each row: 40 hexadecimal digits, the same whenever the row is called for.

    Also after a crash and in a later run. Another row, job, workspace, step or function gives
    another key.
    """
    attempt: int = 1
    """1 for the first call; more when calls before it raised."""
    in_doubt: bool = False
    """Whether a worker that died may have made this call already."""

    @property
    def key(self) -> str:
        """The key of the only row; of a batch one key made of those of all its rows.

        Example:
            >>> mr.Context(job="captions", step="caption", keys=("c4",)).key
            'c4'
            >>> len(mr.Context(job="captions", step="caption", keys=("c4", "c5", "c6")).key)
            40
        """
        return batch_key(self.keys)
