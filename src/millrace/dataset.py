"""What a user of batch touches: a lazily described computation over files.

Invariant: everything that can be wrong with a call is said by that call, before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Protocol, get_args

import pyarrow as pa

from millrace.errors import UserError
from millrace.keys import HashPartitioner
from millrace.plan.aggregates import parse_aggregate
from millrace.plan.expressions import Expression, parse, parse_named
from millrace.plan.nodes import Aggregate, Filter, Join, JoinColumn, JoinKind, Node, Project
from millrace.plan.types import BOOLEAN, from_arrow
from millrace.shuffle.handle import RunReport

_HOW: Final[dict[str, JoinKind]] = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}


class Text(str):
    """Text that a notebook shows as it is, line by line."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Runner(Protocol):
    """Runs plans; a workspace has one."""

    def batches(self, plan: Node) -> tuple[Iterator[pa.RecordBatch], tuple[RunReport, ...]]:
        """The rows of a plan, and what each stage did."""

    def explain(self, plan: Node) -> str:
        """The stages of a plan, as text."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows that are not calculated yet. Made by `Workspace.read_parquet` and its like.

    Example:
        >>> orders = ws.read_parquet("orders/")
        >>> big = orders.filter("amount > 10").join(customers, on="cust_id")
        >>> big.group_by("nation").agg(total="sum(amount)", n="count(*)").collect()
    """

    plan: Node
    runner: Runner

    @property
    def schema(self) -> pa.Schema:
        """Columns and types, known without running anything."""
        return self.plan.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def select(self, *columns: str) -> Dataset:
        """Columns, calculated ones too: `select("a", "a + 1 AS b")`."""
        call = f"select({', '.join(map(repr, columns))})"
        named = [pair for text in columns for pair in parse_named(text, self.schema, call=call)]
        return self._with(Project(self.plan, _distinct_names(named, call)))

    def with_columns(self, **columns: str) -> Dataset:
        """The same columns and new ones, or new values for old ones: `with_columns(b="a + 1")`."""
        call = f"with_columns({', '.join(f'{k}={v!r}' for k, v in columns.items())})"
        new = {name: parse(text, self.schema, call=call) for name, text in columns.items()}
        kept = [
            (name, new.pop(name) if name in new else self._column(name)) for name in self.columns
        ]
        return self._with(Project(self.plan, (*kept, *new.items())))

    def rename(self, **names: str) -> Dataset:
        """The same columns under other names: `rename(old="new")`."""
        self._check(names, f"rename({', '.join(f'{k}={v!r}' for k, v in names.items())})")
        pairs = [(names.get(name, name), self._column(name)) for name in self.columns]
        return self._with(Project(self.plan, _distinct_names(pairs, f"rename(**{names})")))

    def drop(self, *columns: str) -> Dataset:
        """All columns but these."""
        self._check(columns, f"drop({', '.join(map(repr, columns))})")
        kept = [(name, self._column(name)) for name in self.columns if name not in columns]
        if not kept:
            raise UserError("drop() leaves no column\n  to fix: keep at least one")
        return self._with(Project(self.plan, tuple(kept)))

    def filter(self, condition: str) -> Dataset:
        """Rows for which the condition is true: `filter("amount > 10")`."""
        call = f"filter({condition!r})"
        parsed = parse(condition, self.schema, call=call)
        if parsed.type != BOOLEAN:
            raise UserError(f"{call} is not a condition\n  found: {parsed.type}, expected: boolean")
        return self._with(Filter(self.plan, parsed))

    def group_by(self, *keys: str) -> Grouped:
        """Groups of rows with equal keys, for `.agg(...)`. Null is a key like any other."""
        self._check_keys(keys, f"group_by({', '.join(map(repr, keys))})")
        return Grouped(self, keys)

    def agg(self, **aggregates: str) -> Dataset:
        """One row for all rows: `agg(total="sum(amount)", n="count(*)")`."""
        return Grouped(self, ()).agg(**aggregates)

    def distinct(self) -> Dataset:
        """Each row once."""
        self._check_keys(self.columns, "distinct()")
        return self._with(Aggregate(self.plan, tuple(self.columns), ()))

    def join(
        self,
        other: Dataset,
        on: str | Sequence[str] | None = None,
        how: str = "inner",
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
    ) -> Dataset:
        """Rows of both sides whose keys are equal.

        `on` names keys that both sides have; they come first in the result, once. `left_on` and
        `right_on` name them where they differ, and all columns are kept. A column of the right side
        whose name is taken gets `_right`. `how` is as in PySpark: inner, left, right, full, semi,
        anti.
        """
        call = f"join(on={on!r}, how={how!r})"
        kind = _join_kind(how, call)
        left_keys = _names(on if on is not None else left_on)
        right_keys = _names(on if on is not None else right_on)
        if not left_keys or len(left_keys) != len(right_keys):
            raise UserError(
                f"{call} has no pairs of keys\n  found: {left_keys} and {right_keys}\n"
                "  to fix: give on=, or left_on= and right_on= of the same length"
            )
        self._check_keys(left_keys, call)
        other._check_keys(right_keys, call)
        _check_key_types(self.schema, other.schema, left_keys, right_keys, call)
        columns = _join_columns(self, other, left_keys, kind, merged=on is not None)
        return self._with(
            Join(
                left=self.plan,
                right=other.plan,
                left_keys=left_keys,
                right_keys=right_keys,
                how=kind,
                columns=columns,
            )
        )

    def collect(self) -> pa.Table:
        """All rows as a table."""
        rows, _ = self.runner.batches(self.plan)
        return pa.Table.from_batches(rows, self.schema)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """All rows as a stream that holds few of them at a time."""
        rows, _ = self.runner.batches(self.plan)
        return rows

    def count(self) -> int:
        """How many rows there are."""
        return int(self.agg(n="count(*)").collect()["n"][0].as_py())

    def run(self) -> tuple[RunReport, ...]:
        """Calculate, and say for each stage what ran, what was reused and why not more."""
        rows, reports = self.runner.batches(self.plan)
        for _ in rows:
            pass
        return reports

    def explain(self) -> Text:
        """The stages this would run in, with their exchanges."""
        return Text(self.runner.explain(self.plan))

    def _with(self, plan: Node) -> Dataset:
        return Dataset(plan, self.runner)

    def _column(self, name: str) -> Expression:
        quoted = "`" + name.replace("`", "``") + "`"
        return parse(quoted, self.schema, call=f"column {name!r}")

    def _check_keys(self, keys: Sequence[str], call: str) -> None:
        """Keys are columns that can be hashed as Spark does, each named once."""
        self._check(keys, call)
        doubled = [key for key in keys if list(keys).count(key) > 1]
        if doubled:
            raise UserError(f"{call}: {doubled[0]!r} is named twice\n  to fix: name it once")
        if keys:
            HashPartitioner(keys, 1).check(self.schema)

    def _check(self, names: Sequence[str] | dict[str, str], call: str) -> None:
        for name in names:
            if name not in self.columns:
                near = get_close_matches(name, self.columns, n=3) or self.columns
                raise UserError(f"{call}: no column {name!r}\n  candidates: {', '.join(near)}")


@dataclass(frozen=True, slots=True)
class Grouped:
    """Groups of a dataset's rows, waiting to be put together."""

    dataset: Dataset
    keys: tuple[str, ...]

    def agg(self, **aggregates: str) -> Dataset:
        """One row per group: the keys, then these: `agg(total="sum(amount)", n="count(*)")`."""
        call = f"agg({', '.join(f'{k}={v!r}' for k, v in aggregates.items())})"
        taken = [name for name in aggregates if name in self.keys]
        if taken:
            raise UserError(f"{call}: {taken[0]!r} is a key already\n  to fix: choose another name")
        if not aggregates and not self.keys:
            raise UserError("agg() has nothing to calculate\n  to fix: agg(n='count(*)')")
        schema = self.dataset.schema
        parsed = tuple(
            parse_aggregate(name, text, schema, call=call) for name, text in aggregates.items()
        )
        return Dataset(Aggregate(self.dataset.plan, self.keys, parsed), self.dataset.runner)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def _join_kind(how: str, call: str) -> JoinKind:
    kind = _HOW.get(how.lower().replace("_", ""))
    if kind is None:
        raise UserError(f"{call}: unknown kind of join\n  known: {', '.join(get_args(JoinKind))}")
    return kind


def _check_key_types(
    left: pa.Schema, right: pa.Schema, ours: Sequence[str], theirs: Sequence[str], call: str
) -> None:
    for one, two in zip(ours, theirs, strict=True):
        mine, other = from_arrow(left.field(one).type), from_arrow(right.field(two).type)
        if mine != other:
            raise UserError(
                f"{call}: keys of different types\n  found: {one!r} is {mine}, {two!r} is {other}\n"
                "  to fix: cast one of them with with_columns"
            )


def _join_columns(
    left: Dataset, right: Dataset, keys: Sequence[str], how: JoinKind, *, merged: bool
) -> tuple[JoinColumn, ...]:
    if how in ("semi", "anti"):
        return tuple(JoinColumn(name, "left", name) for name in left.columns)
    first = [JoinColumn(name, "key", name) for name in keys] if merged else []
    rest = [name for name in left.columns if not (merged and name in keys)]
    columns = first + [JoinColumn(name, "left", name) for name in rest]
    taken = {column.name for column in columns}
    for name in right.columns:
        if merged and name in keys:
            continue
        new = name
        while new in taken:
            new += "_right"
        taken.add(new)
        columns.append(JoinColumn(new, "right", name))
    return tuple(columns)


def _distinct_names(
    named: Sequence[tuple[str, Expression]], call: str
) -> tuple[tuple[str, Expression], ...]:
    names = [name for name, _ in named]
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise UserError(f"{call}: two columns named {doubled[0]!r}\n  to fix: give one an AS name")
    if not named:
        raise UserError(f"{call} has no columns\n  to fix: name at least one")
    return tuple(named)
