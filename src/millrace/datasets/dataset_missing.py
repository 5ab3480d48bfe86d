"""The calls of a dataset for missing values: nulls and NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from sqlglot import exp

from millrace.datasets.dataset_base import shown_call
from millrace.datasets.dataset_select import DatasetSelect
from millrace.errors import UserError
from millrace.plan.builders.build_select import attribute_tree
from millrace.plan.relation import Attribute
from millrace.sql.connect_literals import cast_tree
from millrace.sql.types import SqlType, from_arrow

Fill = bool | int | float | str
_FLOATS: Final = frozenset({"float", "double"})
_INTEGERS: Final = frozenset({"tinyint", "smallint", "int", "bigint"})
_NUMBERS: Final = _FLOATS | _INTEGERS | {"decimal"}


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
            wanted = {name.lower(): given for name, given in value.items()}
            self._check_given(list(value), call)
        else:
            names = self._subset(subset, call)
            wanted = dict.fromkeys(names, value)
        exact = isinstance(value, Mapping)
        new = {}
        for attribute, kind in self._kinds():
            given = wanted.get(attribute.label.lower())
            if given is not None and _fits(given, kind, exact=exact):
                new[attribute.label] = _filled(attribute, kind, given)
        return self._replaced(new, call)

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
        present = [_present(a, kind) for a, kind in self._kinds() if a.label.lower() in names]
        least = thresh if thresh is not None else len(present) if how == "any" else 1
        if least <= 0 or not present:
            return self._with(self._relation)
        if least == len(present):
            condition = _joined(exp.And, present)
        elif least == 1:
            condition = _joined(exp.Or, present)
        else:
            counted = [
                exp.Case(
                    ifs=[exp.If(this=part, true=exp.Literal.number(1))],
                    default=exp.Literal.number(0),
                )
                for part in present
            ]
            total: exp.Expression = counted[0]
            for part in counted[1:]:
                total = exp.Add(this=total, expression=part)
            condition = exp.GTE(this=total, expression=exp.Literal.number(least))
        return self._kept(condition, call)

    def replace(
        self,
        to_replace: object,
        value: object = ...,
        subset: str | Sequence[str] | None = None,
    ) -> Self:
        """Rows with other values in place of some."""
        arguments = [to_replace] if value is ... else [to_replace, value]
        if isinstance(to_replace, Mapping):
            arguments = [dict(to_replace)]
        names = {} if subset is None else {"subset": subset}
        reason = "values are replaced by Spark, by its rules for types"
        return self._on_spark("replace", *arguments, reason=reason, **names)

    def _kinds(self) -> list[tuple[Attribute, SqlType]]:
        pairs = zip(self._relation.visible, self._relation.schema, strict=True)
        return [(attribute, from_arrow(field.type)) for attribute, field in pairs]

    def _subset(self, subset: str | Sequence[str] | None, call: str) -> list[str]:
        """The columns that are meant, in lower case."""
        if subset is None:
            return [label.lower() for label in self._relation.labels]
        names = [subset] if isinstance(subset, str) else list(subset)
        self._check_given(names, call)
        return [name.lower() for name in names]

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


def _fits(value: Fill, kind: SqlType, *, exact: bool) -> bool:
    """Whether Spark fills columns of this type with this value; named columns take any."""
    if exact:
        return True
    if isinstance(value, bool):
        return kind.name == "boolean"
    if isinstance(value, str):
        return kind.name == "string"
    return kind.name in _NUMBERS


def _filled(attribute: Attribute, kind: SqlType, value: Fill) -> exp.Expression:
    column = attribute_tree(attribute)
    if kind.name in _FLOATS:
        column = _call("nanvl", column, cast_tree(exp.Null(), str(kind), safe=False))
    return _call("coalesce", column, cast_tree(_literal(value), str(kind), safe=False))


def _present(attribute: Attribute, kind: SqlType) -> exp.Expression:
    column = attribute_tree(attribute)
    there: exp.Expression = exp.Not(this=exp.Is(this=column, expression=exp.Null()))
    if kind.name in _FLOATS:
        number = exp.Not(this=_call("isnan", column.copy()))
        there = exp.Paren(this=exp.And(this=there, expression=number))
    return there


def _joined(kind: type[exp.And | exp.Or], parts: Sequence[exp.Expression]) -> exp.Expression:
    whole = parts[0]
    for part in parts[1:]:
        whole = kind(this=whole, expression=part)
    return whole


def _literal(value: Fill) -> exp.Expression:
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, float):
        return cast_tree(exp.Literal.string(repr(value)), "DOUBLE", safe=False)
    if value < 0:
        return exp.Neg(this=exp.Literal.number(-value))
    return exp.Literal.number(value)


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=list(arguments))
