"""The options of a step, checked when the user gives them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from millrace.durations import seconds
from millrace.errors import UserError
from millrace.pipeline.core.job_model import OnDoubt, OnError, StepOptions
from millrace.pipeline.paid.limits_and_budget import Budget, Limits
from millrace.pipeline.paid.retry_policy import class_names

_WHOLE: Final = (
    "workers",
    "partitions",
    "batch_rows",
    "batch_bytes",
    "batch_tokens",
    "concurrency",
)
_CALLS_ONLY: Final = ("limits", "budget", "retry_on", "give_up_on", "batch_tokens")
_PER_MINUTE: Final = 60
_WORKERS: Final = 4
"""Workers among which calls at once are shared, if the step does not say how many."""
_OWN: Final = ("workers", "partitions", "resources", "large")
"""Options that only a step with its own hop can have: such a step is kept."""


def options_of(
    call: str, given: Mapping[str, Any], *, expensive: bool | None = None
) -> StepOptions:
    """The checked options that the user gave to `call`.

    `expensive` is set if the user has no choice, as for a sink's function.
    """
    chosen = dict(given)
    if chosen.get("timeout") is not None:
        chosen["timeout"] = seconds(chosen["timeout"], f"{call}: timeout")
    chosen["resources"] = _resources(call, chosen.get("resources"))
    chosen["large"] = _names(call, chosen.get("large"))
    chosen["budget"] = _budget(call, chosen.get("budget"), chosen.pop("max_calls", None))
    chosen["limits"] = _limits(call, chosen.get("limits"), chosen.pop("rate", None))
    for name in ("retry_on", "give_up_on"):
        chosen[name] = _classes(call, name, chosen.get(name))
    options = _at_once(StepOptions(**chosen))
    for name in _WHOLE:
        _check_number(call, name, getattr(options, name), whole=True)
    _check_number(call, "timeout", options.timeout, whole=False)
    _check_retries(call, options.retries)
    check_one_of(call, "on_error", options.on_error, get_args(OnError))
    check_one_of(call, "on_doubt", options.on_doubt, get_args(OnDoubt))
    version: object = options.version
    if version is not None and (not isinstance(version, str) or not version):
        raise UserError(f"{call}: version is {version!r}\n  to fix: give a text")
    _check_together(call, options, expensive=options.expensive if expensive is None else expensive)
    return options


def is_of_its_own(options: StepOptions) -> bool:
    """Whether the options need a hop of its own, so that the step is not fused into the next."""
    return any(getattr(options, name) for name in _OWN)


def _check_together(call: str, options: StepOptions, *, expensive: bool) -> None:
    limited = [name for name in _CALLS_ONLY if getattr(options, name)]
    limited += ["on_doubt"] if options.on_doubt != "retry" else []
    limited += ["ordered"] if not options.ordered else []
    if limited and not expensive:
        raise UserError(
            f"{call}: {limited[0]} needs calls that are recorded\n  to fix: add expensive=True"
        )
    if options.durable is not False:
        return
    if expensive:
        raise UserError(
            f"{call}: expensive=True with durable=False\n  what was paid for would be lost in a "
            "crash\n  to fix: leave one of them out"
        )
    own = [name for name in _OWN if getattr(options, name)]
    if own:
        raise UserError(
            f"{call}: {own[0]} with durable=False\n  a step that is not kept runs within the next "
            "one\n  to fix: leave one of them out"
        )


def _at_once(options: StepOptions) -> StepOptions:
    """The options, with as many workers and slots as `limits` allow together."""
    most = None if options.limits is None else options.limits.concurrent
    if most is None:
        return options
    workers = min(most, options.workers or _WORKERS)
    return replace(options, workers=workers, concurrency=min(options.concurrency, most // workers))


def _budget(call: str, given: object, max_calls: object) -> Budget | None:
    """The budget; `max_calls=` is one of calls alone."""
    if max_calls is not None:
        _check_number(call, "max_calls", max_calls, whole=True)
        if given is not None:
            raise UserError(
                f"{call}: max_calls and budget\n  to fix: give one of them: mr.Budget(calls=...)"
            )
        assert isinstance(max_calls, int), "just checked"
        return Budget(calls=max_calls)
    if given is not None and not isinstance(given, Budget):
        raise UserError(f"{call}: budget is {given!r}\n  to fix: give mr.Budget(usd=...)")
    return given


def _limits(call: str, given: object, rate: object) -> Limits | None:
    """The limits; `rate=` is one of calls per second alone."""
    if rate is not None:
        _check_number(call, "rate", rate, whole=False)
        if given is not None:
            raise UserError(
                f"{call}: rate and limits\n  to fix: give one of them: mr.Limits(rpm=...)"
            )
        assert isinstance(rate, int | float), "just checked"
        return Limits(rpm=_PER_MINUTE * rate)
    if given is not None and not isinstance(given, Limits):
        raise UserError(f"{call}: limits is {given!r}\n  to fix: give mr.Limits(rpm=...)")
    return given


def _classes(call: str, name: str, given: object) -> tuple[str, ...]:
    """Classes of errors, by their names."""
    if given is None:
        return ()
    single = isinstance(given, str | type)
    several = [given] if single else given
    names = class_names(several) if isinstance(several, Sequence) else None
    if names is None:
        raise UserError(
            f"{call}: {name} is {given!r}\n  to fix: give classes of errors, or their names"
        )
    return tuple(names)


def _check_number(call: str, name: str, value: object, *, whole: bool) -> None:
    if value is None:
        return
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
        what = "a whole number of at least 1" if whole else "a number above 0"
        raise UserError(f"{call}: {name} is {value!r}\n  to fix: give {what}")


def _check_retries(call: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{call}: retries is {value!r}\n  to fix: give 0 or more")


def check_one_of(call: str, name: str, value: object, known: Sequence[str]) -> None:
    """Refuse a value that is none of these."""
    if value not in known:
        raise UserError(f"{call}: {name} is {value!r}\n  to fix: use {' or '.join(known)}")


def _resources(call: str, given: object) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UserError(f"{call}: resources is {given!r}\n  to fix: give {{'gpu': 1}}")
    for name, amount in given.items():
        _check_number(call, f"resources[{name!r}]", amount, whole=False)
    return {str(name): float(given[name]) for name in sorted(given)}


def _names(call: str, given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{call}: large is {given!r}\n  to fix: give names of columns")
    return tuple(names)
