"""The calls of a dataset for missing values: nulls and NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from millrace.datasets.dataset_base import shown_call
from millrace.datasets.dataset_select import DatasetSelect
from millrace.errors import UserError
from millrace.plan.builders.reshape.missing_values import Fill, filled, replaced, without_missing
from millrace.sql.sql_mode import folded
from millrace.sql.typed_sql import NotNative


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetMissing(DatasetSelect):
    """A dataset's nulls and NaN."""

    @property
    def na(self) -> MissingValues[Self]:
        """The calls for missing values as Spark groups them: `na.fill`, `na.drop`, `na.replace`."""
        return MissingValues(self)

    def fillna(
        self,
        value: Fill | Mapping[str, Fill],
        subset: str | Sequence[str] | None = None,
    ) -> Self:
        """Rows with a value in place of null and NaN, in columns that such a value can stand in."""
        call = shown_call("fillna", [value, subset])
        if isinstance(value, Mapping):
            wanted = {folded(name): given for name, given in value.items()}
            self._check_given(list(value), call)
        else:
            names = self._subset(subset, call)
            wanted = dict.fromkeys(names, value)
        exact = isinstance(value, Mapping)
        with self._building(call) as context:
            return self._with(filled(context, self._relation, wanted, exact=exact))

    def dropna(
        self,
        how: str = "any",
        thresh: int | None = None,
        subset: str | Sequence[str] | None = None,
    ) -> Self:
        """Rows with no null and no NaN in these columns; with "all", those with some other value.

        `thresh` is the least number of other values.
        """
        call = shown_call("dropna", [how, thresh, subset])
        if how not in ("any", "all"):
            raise UserError(f'{call}: how is {how!r}\n  to fix: write "any" or "all"')
        names = set(self._subset(subset, call))
        least = thresh if thresh is not None else None if how == "any" else 1
        with self._building(call) as context:
            return self._with(without_missing(context, self._relation, names, least))

    def replace(
        self,
        to_replace: object,
        value: object = ...,
        subset: str | Sequence[str] | None = None,
    ) -> Self:
        """Rows with other values in place of some."""
        pairs = _pairs(to_replace, value)
        if pairs is not None:
            call = shown_call("replace", [to_replace, subset])
            names = self._subset(subset, call)
            with self._building(call) as context, suppress(NotNative):
                return self._with(replaced(context, self._relation, pairs, names))
        arguments = [to_replace] if value is ... else [to_replace, value]
        if isinstance(to_replace, Mapping):
            arguments = [dict(to_replace)]
        given = {} if subset is None else {"subset": subset}
        reason = "these values are replaced by Spark, by its rules for types"
        return self._on_spark("replace", *arguments, reason=reason, **given)

    def _subset(self, subset: str | Sequence[str] | None, call: str) -> list[str]:
        """The columns that are meant, in lower case."""
        if subset is None:
            return [folded(label) for label in self._relation.labels]
        names = [subset] if isinstance(subset, str) else list(subset)
        self._check_given(names, call)
        return [folded(name) for name in names]

    def _check_given(self, names: Sequence[str], call: str) -> None:
        with self._building(call):
            for name in names:
                self._check_name(name)


D = TypeVar("D", bound=DatasetMissing)


@dataclass(frozen=True, slots=True)
class MissingValues(Generic[D]):
    """`dataset.na`: the calls for missing values under Spark's short names."""

    _dataset: D

    def fill(
        self, value: Fill | Mapping[str, Fill], subset: str | Sequence[str] | None = None
    ) -> D:
        """`fillna`."""
        return self._dataset.fillna(value, subset)

    def drop(
        self,
        how: str = "any",
        thresh: int | None = None,
        subset: str | Sequence[str] | None = None,
    ) -> D:
        """`dropna`."""
        return self._dataset.dropna(how, thresh, subset)

    def replace(
        self, to_replace: object, value: object = ..., subset: str | Sequence[str] | None = None
    ) -> D:
        """`replace`."""
        return self._dataset.replace(to_replace, value, subset)


def _pairs(to_replace: object, value: object) -> list[tuple[Fill, Fill | None]] | None:
    """What is replaced by what; None if Spark has to say what this means."""
    if isinstance(to_replace, Mapping):
        pairs = list(to_replace.items())
    elif value is ...:
        return None
    else:
        olds = list(to_replace) if isinstance(to_replace, list | tuple) else [to_replace]
        news = list(value) if isinstance(value, list | tuple) else [value] * len(olds)
        if len(olds) != len(news):
            return None
        pairs = list(dict(zip(olds, news, strict=True)).items())
    given = [old for old, _ in pairs] + [new for _, new in pairs if new is not None]
    for kinds in ((bool,), (str,), (int, float)):
        if all(isinstance(part, kinds) for part in given):
            return None if kinds == (int, float) and bool in map(type, given) else pairs
    return None
