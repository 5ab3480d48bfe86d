"""The calls of a dataset that describe its values, or choose some of its rows by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

from millrace.datasets.column_arguments import ColumnOrName
from millrace.datasets.dataset_rows import DatasetRows
from millrace.errors import UserError

_WHY: Final = "Spark has its own rules for these statistics"
_CHANCE: Final = "Spark chooses rows by its own random numbers"
_DRAW: Final = "__draw"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetStatistics(DatasetRows):
    """A dataset's statistics and samples."""

    @property
    def stat(self) -> Statistics[Self]:
        """The calls for statistics, as Spark groups them: `stat.corr` and others."""
        return Statistics(self)

    def describe(self, *cols: str | list[str]) -> Self:
        """Count, mean, standard deviation, least and greatest value of columns, as text."""
        return self._on_spark("describe", *cols, reason=_WHY)

    def summary(self, *statistics: str) -> Self:
        """The statistics that are named, or those of `describe` and quartiles, as text."""
        return self._on_spark("summary", *statistics, reason=_WHY)

    def crosstab(self, col1: str, col2: str) -> Self:
        """How often each pair of values of two columns comes."""
        return self._spark_rows_now("crosstab", col1, col2)

    def freqItems(self, cols: Sequence[str], support: float | None = None) -> Self:
        """Values that come often."""
        return self._on_spark("freqItems", list(cols), support, reason=_WHY)

    def transpose(self, indexColumn: ColumnOrName | None = None) -> Self:
        """Rows as columns, and columns as rows."""
        given = [] if indexColumn is None else [indexColumn]
        return self._spark_rows_now("transpose", *given)

    def approxQuantile(
        self,
        col: str | Sequence[str],
        probabilities: Sequence[float],
        relativeError: float,
    ) -> list[Any]:
        """Quantiles of one column, or of each of several, up to an error."""
        given = col if isinstance(col, str) else list(col)
        rows = self._on_spark(
            "approxQuantile", given, list(probabilities), relativeError, reason=_WHY
        )
        (value,) = rows._value()
        return list(value[0] if isinstance(col, str) else value)

    def corr(self, col1: str, col2: str, method: str | None = None) -> float:
        """Pearson's correlation of two columns."""
        (value,) = self._on_spark("corr", col1, col2, method, reason=_WHY)._value()
        return float(value)

    def cov(self, col1: str, col2: str) -> float:
        """The sample covariance of two columns."""
        (value,) = self._on_spark("cov", col1, col2, reason=_WHY)._value()
        return float(value)

    def sample(
        self,
        withReplacement: bool | float | None = None,
        fraction: float | None = None,
        seed: int | None = None,
    ) -> Self:
        """A share of the rows by chance. With a seed, a later run has the same rows."""
        if fraction is None and not isinstance(withReplacement, bool):
            withReplacement, fraction = None, withReplacement  # noqa: N806 - Spark's
        named = {"withReplacement": withReplacement, "fraction": fraction, "seed": seed}
        given = {name: value for name, value in named.items() if value is not None}
        return self._on_spark("sample", reason=_CHANCE, **given)

    def sampleBy(
        self, col: ColumnOrName, fractions: Mapping[Any, float], seed: int | None = None
    ) -> Self:
        """A share of the rows by chance, for each value of a column."""
        given = {} if seed is None else {"seed": seed}
        return self._on_spark("sampleBy", col, dict(fractions), reason=_CHANCE, **given)

    def randomSplit(self, weights: Sequence[float], seed: int | None = None) -> list[Self]:
        """All rows, shared out by chance."""
        if not weights or any(weight < 0 for weight in weights) or not sum(weights):
            raise UserError(
                f"randomSplit({list(weights)!r}): weights are 0 or more, and some are more\n"
                "  to fix: write randomSplit([0.8, 0.2])"
            )
        argument = "" if seed is None else str(int(seed))
        drawn = self.with_columns({_DRAW: f"rand({argument})"}).durable()
        total, reached, parts = sum(weights), 0.0, []
        for number, weight in enumerate(weights):
            low, reached = reached, reached + weight / total
            high = reached if number < len(weights) - 1 else 2.0
            part = drawn.filter(f"{_DRAW} >= {low!r}D AND {_DRAW} < {high!r}D")
            parts.append(part.drop(_DRAW))
        return parts


D = TypeVar("D", bound=DatasetStatistics)


@dataclass(frozen=True, slots=True)
class Statistics(Generic[D]):
    """`dataset.stat`: statistics under Spark's short names."""

    _dataset: D

    def approxQuantile(
        self,
        col: str | Sequence[str],
        probabilities: Sequence[float],
        relativeError: float,
    ) -> list[Any]:
        """`approxQuantile` of the dataset."""
        return self._dataset.approxQuantile(col, probabilities, relativeError)

    def corr(self, col1: str, col2: str, method: str | None = None) -> float:
        """`corr` of the dataset."""
        return self._dataset.corr(col1, col2, method)

    def cov(self, col1: str, col2: str) -> float:
        """`cov` of the dataset."""
        return self._dataset.cov(col1, col2)

    def crosstab(self, col1: str, col2: str) -> D:
        """`crosstab` of the dataset."""
        return self._dataset.crosstab(col1, col2)

    def freqItems(self, cols: Sequence[str], support: float | None = None) -> D:
        """`freqItems` of the dataset."""
        return self._dataset.freqItems(cols, support)

    def sampleBy(
        self, col: ColumnOrName, fractions: Mapping[Any, float], seed: int | None = None
    ) -> D:
        """`sampleBy` of the dataset."""
        return self._dataset.sampleBy(col, fractions, seed)
