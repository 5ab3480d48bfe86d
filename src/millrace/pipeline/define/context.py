"""The context of a call, for the user's function. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.errors import UserError
from millrace.pipeline.core.hop_rows import batch_key
from millrace.pipeline.paid.spend import NANO_USD, Allowed, CallSpend, Spend, SpendNotes


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
    noted: SpendNotes = field(default_factory=SpendNotes, repr=False, compare=False)
    """What `spend` noted during this call."""

    def spend(
        self,
        *,
        tokens_in: int = 0,
        tokens_cached: int = 0,
        tokens_out: int = 0,
        usd: float | None = None,
        model: str = "",
        request_id: str = "",
    ) -> None:
        """Note what the call has cost; it is recorded with the call, also if the call raises.

        Several times in one call are added up.

        Args:
            tokens_in: tokens of the question that were not cached.
            tokens_cached: tokens of the question that the provider had in its cache.
            tokens_out: tokens of the answer.
            usd: dollars; without it the call counts as free. Steps of `mr.llm` give them, by the
                package's table of prices.
            model: the name of the model.
            request_id: the provider's name for the request.

        Example:
            >>> context = mr.Context(job="captions", step="caption", keys=("c4",))
            >>> context.spend(tokens_in=900, tokens_out=40, usd=0.0031, model="small-1")
            >>> context.noted.noted.spend.tokens
            940
        """
        counts = {"tokens_in": tokens_in, "tokens_cached": tokens_cached, "tokens_out": tokens_out}
        for name, value in counts.items():
            if type(value) is not int or value < 0:
                raise UserError(f"spend: {name} is {value!r}\n  to fix: give 0 or more")
        if usd is not None and (type(usd) not in (int, float) or not 0 <= usd < float("inf")):
            raise UserError(f"spend: usd is {usd!r}\n  to fix: give 0 or more")
        spend = Spend(**counts, nano_usd=round((usd or 0) * NANO_USD))
        self.noted.add(
            CallSpend(spend=spend, model=model, request_id=request_id, is_priced=usd is not None)
        )

    def allowed(
        self,
        *,
        rpm: float | None = None,
        tpm: float | None = None,
        calls_left: float | None = None,
        tokens_left: float | None = None,
    ) -> None:
        """Note how many calls and tokens per minute the provider says that it allows.

        All workers keep to the least of this and the `limits=` of the step. A step without limits
        keeps to it when little is left.

        Args:
            rpm: calls per minute.
            tpm: tokens per minute.
            calls_left: how many calls the provider would take now.
            tokens_left: how many tokens it would take now.

        Example:
            >>> context = mr.Context(job="captions", step="caption", keys=("c4",))
            >>> context.allowed(tpm=200_000)
        """
        for name, value in (("rpm", rpm), ("tpm", tpm)):
            is_number = type(value) in (int, float)
            if value is not None and not (is_number and 0 < value < float("inf")):
                raise UserError(f"allowed: {name} is {value!r}\n  to fix: give a number above 0")
        for name, value in (("calls_left", calls_left), ("tokens_left", tokens_left)):
            is_number = type(value) in (int, float)
            if value is not None and not (is_number and 0 <= value < float("inf")):
                raise UserError(f"allowed: {name} is {value!r}\n  to fix: give 0 or more")
        self.noted.add(CallSpend(allowed=Allowed(rpm, tpm, calls_left, tokens_left)))

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
