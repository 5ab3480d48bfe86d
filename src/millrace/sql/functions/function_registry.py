"""The table of functions: each name once, with how it is called and what builds it.

Invariant: a name is in the table only if the tests compare it with Spark; docs/functions.md lists
exactly this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from sqlglot import exp

from millrace.sql.typed_sql import NotNative, TypedSql

Build = Callable[[str, list[TypedSql]], TypedSql]


class Typer(Protocol):
    """What types the arguments of a call that is built from its syntax tree."""

    def typed(self, node: exp.Expression) -> TypedSql:
        """The typed form of a node."""

    def typed_all(self, nodes: Sequence[exp.Expression]) -> list[TypedSql]:
        """The typed forms of several nodes."""

    def find(self, name: str) -> TypedSql:
        """The variable of this name, or else the column."""

    def bound(self, variables: Mapping[str, TypedSql]) -> Typer:
        """The same with variables of a lambda, which hide columns of their names."""

    @property
    def lambda_depth(self) -> int:
        """In how many lambdas the expression stands."""


TreeBuild = Callable[[Typer, str, list[exp.Expression]], TypedSql]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function: its name, how it is called, how many arguments it takes, what builds it."""

    name: str
    usage: str
    group: str
    least: int
    most: int
    build: Build | None = None
    tree_build: TreeBuild | None = None


FUNCTIONS: Final[dict[str, Function]] = {}
ANY_NUMBER: Final = 1000
_SKETCHED: Final = ("bigint", "double", "float")
_MERGED: Final = ("intersection", "sketch", "union")
SPARK_AGGREGATES: Final = (
    *("approx_count_distinct", "approx_top_k", "approx_top_k_accumulate", "approx_top_k_combine"),
    *("bitmap_and_agg", "bitmap_construct_agg", "bitmap_or_agg", "count_min_sketch"),
    *("histogram_numeric", "hll_sketch_agg", "hll_union_agg", "schema_of_variant_agg"),
    *(f"kll_{what}_agg_{kind}" for what in ("merge", "sketch") for kind in _SKETCHED),
    *(f"theta_{what}_agg" for what in ("intersection", "sketch", "union")),
    *(f"tuple_{what}_agg_{kind}" for what in _MERGED for kind in ("double", "integer")),
    *("vector_avg", "vector_sum", "measure"),
)
AGGREGATES: Final = (
    *("sum", "count", "count_if", "min", "max", "min_by", "max_by"),
    *("first", "first_value", "last", "last_value", "any_value", "avg", "mean", "median", "mode"),
    *("std", "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"),
    *("skewness", "kurtosis", "corr", "covar_pop", "covar_samp", "regr_count", "regr_avgx"),
    *("regr_avgy", "regr_sxx", "regr_sxy", "regr_syy", "regr_slope", "regr_intercept", "regr_r2"),
    *("percentile", "percentile_cont", "percentile_disc", "percentile_approx", "try_sum"),
    *("approx_percentile", "collect_list", "array_agg", "list", "collect_set", "try_avg"),
    *("bool_and", "every", "bool_or", "some", "any", "bit_and", "bit_or", "bit_xor"),
    *("listagg", "string_agg"),
    *SPARK_AGGREGATES,
)
"""All aggregates of Spark; those of `SPARK_AGGREGATES` are never native."""


def function(
    usages: str, *, group: str, least: int = 1, most: int | None = None
) -> Callable[[Build], Build]:
    """Enter a builder in the table, under every name in `usages` (one call per line)."""

    def enter(build: Build) -> Build:
        for usage in usages.split("; "):
            _enter(usage, group, least, most, build=build)
        return build

    return enter


def tree_function(
    usages: str, *, group: str, least: int = 1, most: int | None = None
) -> Callable[[TreeBuild], TreeBuild]:
    """As `function`, for a builder that looks at the arguments' syntax: names, lambdas."""

    def enter(build: TreeBuild) -> TreeBuild:
        for usage in usages.split("; "):
            _enter(usage, group, least, most, tree_build=build)
        return build

    return enter


def _enter(
    usage: str,
    group: str,
    least: int,
    most: int | None,
    *,
    build: Build | None = None,
    tree_build: TreeBuild | None = None,
) -> None:
    name = usage.split("(", maxsplit=1)[0].strip()
    assert name not in FUNCTIONS
    FUNCTIONS[name] = Function(
        name=name,
        usage=usage.strip(),
        group=group,
        least=least,
        most=least if most is None else most,
        build=build,
        tree_build=tree_build,
    )


def call(name: str, arguments: list[TypedSql]) -> TypedSql:
    """Call a function of the table."""
    known = FUNCTIONS[name]
    _check_count(known, len(arguments))
    assert known.build is not None
    return known.build(name, arguments)


def call_tree(typer: Typer, name: str, arguments: list[exp.Expression]) -> TypedSql:
    """Call a function of the table, whose arguments are not typed yet."""
    known = FUNCTIONS[name]
    _check_count(
        known, len(arguments)
    )  # First: another form may have words, as datediff(DAY, ...).
    if known.tree_build is None:
        return call(name, typer.typed_all(arguments))
    return known.tree_build(typer, name, arguments)


def _check_count(known: Function, count: int) -> None:
    if not known.least <= count <= known.most:
        raise NotNative(
            f"{known.name} was called with {count} arguments",
            found=f"its form is {known.usage}",
            fix="call it that way",
        )
