"""Random pipelines over random tables, each built twice: as a dataset and as a Spark DataFrame.

Everything follows from a seed. Columns whose names begin with `x_` hold doubles that are not exact
to the last digit; nothing is sorted, grouped, joined or filtered by them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from millrace.datasets.dataset import Dataset
from millrace.plan.builders.build_join import right_names

Both = tuple[Dataset, DataFrame]


@dataclass(frozen=True)
class Pipeline:
    """A dataset, the same as a DataFrame, and how they came about."""

    ours: Dataset
    theirs: DataFrame
    steps: tuple[str, ...] = ()
    ordered: bool = False
    multiplied: bool = False

    def then(
        self,
        step: str,
        ours: Dataset,
        theirs: DataFrame,
        *,
        ordered: bool = False,
        multiplied: bool | None = None,
    ) -> Pipeline:
        """One step further; `multiplied` says that a join may have made many rows of few."""
        return Pipeline(
            ours,
            theirs,
            (*self.steps, step),
            ordered=ordered,
            multiplied=self.multiplied if multiplied is None else multiplied,
        )

    def with_one_name_each(self) -> Pipeline:
        """The same; columns of ours that have one name get the names that they have in theirs."""
        if len(set(self.ours.columns)) == len(self.ours.columns):
            return self
        return replace(self, ours=self.ours.toDF(*self.theirs.columns))

    def columns(self, *, of: Callable[[pa.DataType], bool] = lambda _: True) -> list[str]:
        """Columns that are exact, of some types."""
        fields = [one for one in self.ours.arrow_schema if not one.name.startswith("x_")]
        return [one.name for one in fields if of(one.type)]

    @property
    def exact(self) -> Pipeline:
        """Without the columns that are not."""
        kept = self.columns()
        if kept == self.ours.columns or not kept:
            return self
        return replace(self, ours=self.ours.select(*kept), theirs=self.theirs.select(*kept))


def random_pipeline(seed: int, tables: Sequence[Both]) -> Pipeline:
    """Some steps over one of the tables, others taking part in joins and unions."""
    random = Random(seed)  # noqa: S311 - not for secrets
    first = _start(random, tables)
    for _ in range(random.randint(2, 5)):
        if first.columns():
            first = random.choice(_STEPS)(random, first, tables)
    return first


def _start(random: Random, tables: Sequence[Both], columns: int = 6) -> Pipeline:
    number = random.randrange(len(tables))
    ours, theirs = tables[number]
    kept = random.sample(ours.columns, columns)
    return Pipeline(ours.select(*kept), theirs.select(*kept), (f"table {number}: {kept}",))


def _new_name(random: Random, prefix: str = "c") -> str:
    return f"{prefix}{random.randrange(1_000_000)}"


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _short(kind: pa.DataType) -> bool:
    """A number whose sums and products have room."""
    return _is_number(kind) and not (pa.types.is_decimal(kind) and kind.precision > 12)


def _condition(random: Random, schema: pa.Schema, name: str) -> str:
    kind = schema.field(name).type
    sign = random.choice(["<", "<=", "=", "<>", ">", ">=", "<=>"])
    if random.random() < 0.2:
        return f"{name} IS {random.choice(['', 'NOT '])}NULL"
    if pa.types.is_boolean(kind):
        return random.choice([name, f"NOT {name}", f"{name} IS NOT TRUE"])
    if pa.types.is_string(kind):
        return f"{name} {sign} 'a'"
    if pa.types.is_binary(kind):
        return f"{name} {sign} X'00FF'"
    if pa.types.is_date(kind):
        return f"{name} {sign} DATE '2021-03-27'"
    if pa.types.is_timestamp(kind):
        zone = "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
        return f"{name} {sign} {zone} '2021-03-27 23:45:00'"
    value = random.choice(["0", "1", "-1", "2.5", "cast('NaN' AS double)"])
    return f"{name} {sign} {value}"


def _filter(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    some = random.sample(line.columns(), min(2, len(line.columns())))
    parts = [_condition(random, line.ours.arrow_schema, name) for name in some]
    condition = random.choice([" AND ", " OR "]).join(parts)
    return line.then(
        f"filter {condition}", line.ours.filter(condition), line.theirs.filter(condition)
    )


def _calculated(random: Random, line: Pipeline) -> tuple[str, str]:
    """An expression and a name for it."""
    name = _new_name(random)
    numbers = line.columns(of=_short)
    texts = line.columns(of=pa.types.is_string)
    days = line.columns(of=pa.types.is_date)
    moments = line.columns(of=pa.types.is_timestamp)
    anything = random.choice(line.columns())
    found = [f"coalesce({anything}, {anything})", f"{anything} IS NULL"]
    found += [f"CASE WHEN {anything} IS NOT NULL THEN {anything} END"]
    if numbers:
        one, two = random.choice(numbers), random.choice(numbers)
        found += [f"{one} + {two}", f"{one} * 2", f"-{one}", f"{one} > {two}"]
    found += [f"upper({text}) || '-'" for text in texts]
    found += [f"year({day}) * 100 + month({day})" for day in days]
    found += [f"date_trunc('day', {moment})" for moment in moments]
    return random.choice(found), name


def _select(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    text, name = _calculated(random, line)
    kept = random.sample(line.ours.columns, random.randint(1, len(line.ours.columns)))
    asked = [*kept, f"{text} AS {name}"]
    return line.then(
        f"select {asked}",
        line.ours.select(*asked),
        line.theirs.selectExpr(*asked),
    )


def _with_column(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    text, name = _calculated(random, line)
    return line.then(
        f"with {name} = {text}",
        line.ours.with_columns(**{name: text}),
        line.theirs.withColumn(name, fn.expr(text)),
    )


def _aggregates(random: Random, line: Pipeline) -> dict[str, str]:
    found = {}
    for _ in range(random.randint(1, 4)):
        numbers = line.columns(of=_short)
        truths = line.columns(of=pa.types.is_boolean)
        anything = random.choice(line.columns())
        texts = ["count(*)", f"count({anything})", f"count(DISTINCT {anything})"]
        texts += [f"min({anything})", f"max({anything})"]
        exact = not numbers or random.random() < 0.5
        if exact and numbers:
            texts += [f"sum({random.choice(numbers)})"] * 3
            texts += [f"sum({random.choice(numbers)}) > count(*)"]
            texts += [f"sum(DISTINCT {random.choice(numbers)})"]
        if exact and truths:
            texts += [f"bool_and({truths[0]})", f"bool_or({truths[0]})"]
        if not exact:
            one = random.choice(numbers)
            texts = [f"avg({one})", f"stddev({one})", f"var_pop({one})"]
            texts += [f"avg({one}) + count(*)", f"sum({one}) / nullif(count({one}), 0)"]
            texts += [f"median({one})", f"percentile({one}, 0.3)"]
        found[_new_name(random, "c" if exact else "x_")] = random.choice(texts)
    return found


def _group(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    keys = random.sample(line.columns(), random.randint(0, min(3, len(line.columns()))))
    asked = _aggregates(random, line)
    listed = [fn.expr(text).alias(name) for name, text in asked.items()]
    return line.then(
        f"group by {keys}: {asked}",
        line.ours.group_by(*keys).agg(**asked),
        line.theirs.groupBy(*keys).agg(*listed),
        multiplied=False,
    )


def _distinct(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    line = line.exact
    if random.random() < 0.5:
        return line.then("distinct", line.ours.distinct(), line.theirs.distinct())
    keys = random.sample(line.columns(), random.randint(1, min(3, len(line.columns()))))
    return line.then(
        f"distinct {keys}",
        line.ours.drop_duplicates(*keys).select(*keys),
        line.theirs.dropDuplicates(keys).select(*keys),
    )


def _union(random: Random, line: Pipeline, tables: Sequence[Both]) -> Pipeline:
    other = line.then("same", line.ours, line.theirs)
    for _ in range(random.randint(0, 2)):
        other = random.choice([_filter, _sort, _durable])(random, other, tables)
    if random.random() < 0.3:
        kinds = {one.name: one.type for one in line.ours.arrow_schema}
        source, frame = random.choice(tables)
        same = [n for n in source.columns if kinds.get(n) == source.arrow_schema.field(n).type]
        if same:
            return line.then(
                f"{same} union with a table",
                line.ours.select(*same).union(source.select(*same)),
                line.theirs.select(*same).union(frame.select(*same)),
            )
    return line.then(
        f"union with {other.steps[len(line.steps) :]}",
        line.ours.union(other.ours),
        line.theirs.union(other.theirs),
    )


def _order(random: Random, names: Sequence[str]) -> list[str]:
    ways = ["", "", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST"]
    return [name + random.choice(ways) for name in names]


def _sort(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    names = random.sample(line.columns(), len(line.columns()))
    order = _order(random, names)
    return line.then(
        f"sort {order}",
        line.ours.sort(*order),
        line.theirs.orderBy(*map(_spark_order, order)),
        ordered=line.columns() == line.ours.columns,
    )


def _spark_order(text: str) -> Column:
    name, _, way = text.partition(" ")
    column = fn.col(name)
    return {
        "": column.asc,
        "DESC": column.desc,
        "ASC NULLS LAST": column.asc_nulls_last,
        "DESC NULLS FIRST": column.desc_nulls_first,
    }[way]()


def _first(random: Random, line: Pipeline, tables: Sequence[Both]) -> Pipeline:
    line = _sort(random, line.exact, tables)
    count = random.choice([0, 1, 5, 30])
    return line.then(
        f"limit {count}", line.ours.limit(count), line.theirs.limit(count), ordered=True
    )


def _durable(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    if random.random() < 0.3:
        return line.then("durable", line.ours.durable(), line.theirs)
    keys = random.sample(line.columns(), random.randint(0, min(2, len(line.columns()))))
    count = random.choice([1, 2, 7])
    return line.then(
        f"repartition {count} {keys}", line.ours.repartition(count, *keys), line.theirs
    )


def _window(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    columns = line.columns()
    by = random.sample(columns, random.randint(0, min(2, len(columns))))
    order = _order(random, random.sample(columns, random.randint(1, min(2, len(columns)))))
    whole = _order(random, random.sample(columns, len(columns)))
    numbers, anything = line.columns(of=_short), random.choice(columns)
    name = _new_name(random)
    texts = ["rank(){}", "dense_rank(){}", "count(*){}", f"max({anything}){{}}"]
    texts += [f"sum({one}){{}}" for one in numbers]
    if columns == line.ours.columns and random.random() < 0.4:
        order = whole
        texts = ["row_number(){}", f"lag({anything}){{}}", f"lead({anything}, 2){{}}"]
        texts += [f"last_value({anything}){{}}", "ntile(3){}", "row_number(){0} - rank(){0}"]
    text = random.choice(texts)
    frame = None
    if order is whole and ("sum" in text or "last" in text) and random.random() < 0.5:
        frame = "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING"
    window = [f"PARTITION BY {', '.join(by)}"] if by else []
    window += [f"ORDER BY {', '.join(order)}", *([frame] if frame else [])]
    theirs = line.theirs.withColumn(name, fn.expr(text.format(f" OVER ({' '.join(window)})")))
    asked = {name: text.format("")}
    ours = line.ours.window(partition_by=by, order_by=order, frame=frame, **asked)
    return line.then(f"window {text} {window}", ours, theirs)


def _join(random: Random, line: Pipeline, tables: Sequence[Both]) -> Pipeline:
    other = _start(random, tables, 4)
    if random.random() < 0.3:
        other = line.exact  # A join with itself: both sides lie alike.
    for _ in range(random.randint(0, 2)):
        step = random.choice([_filter, _group, _distinct, _durable, _select])
        other = step(random, other.exact, tables)
    other = other.exact
    pairs = _pairs(random, line, other)
    how = random.choice(["inner", "left", "right", "full", "semi", "anti"])
    if line.multiplied and how not in ("semi", "anti"):
        how = "semi"
    if not pairs:
        return line
    described = f"{how} join on {pairs} with {other.steps}"
    if all(one == two for one, two in pairs) and random.random() < 0.6:
        return _joined_once(line, other, [one for one, _ in pairs], how, described)
    return _joined_apart(random, line, other, pairs, how, described)


def _join_free(random: Random, line: Pipeline, tables: Sequence[Both]) -> Pipeline:
    """A join without keys, with a condition or none."""
    other = _filter(random, _start(random, tables, 3), tables)
    other = _group(random, other, tables).exact
    if line.multiplied or not other.columns():
        return line
    names = right_names(line.ours.arrow_schema, other.ours.arrow_schema)
    right = other.theirs.toDF(*names.values())
    how = random.choice(["cross", "inner", "left", "semi", "anti"])
    condition = _both_sides(random, line, other, names)
    if how == "cross" and random.random() < 0.5:
        joined = line.ours.join(other.ours, how="cross")
        return line.then(
            f"cross join with {other.steps}", joined, line.theirs.crossJoin(right), multiplied=True
        ).with_one_name_each()
    return line.then(
        f"{how} join with {other.steps} if {condition}",
        line.ours.join(other.ours, how=how, condition=condition),
        line.theirs.join(right, fn.expr(condition), "inner" if how == "cross" else how),
        multiplied=True,
    )


def _both_sides(random: Random, line: Pipeline, other: Pipeline, names: dict[str, str]) -> str:
    """A condition over columns of both sides."""
    theirs = [pa.field(names[one.name], one.type) for one in other.ours.arrow_schema]
    name = random.choice([*line.columns(), *(names[n] for n in other.columns())])
    condition = _condition(random, pa.schema([*line.ours.arrow_schema, *theirs]), name)
    more = _pairs(random, line, other)
    if random.random() < 0.5 and more:
        condition = f"({condition}) OR {more[0][0]} < {names[more[0][1]]}"
    return condition


def _renamed(random: Random, line: Pipeline, _: Sequence[Both]) -> Pipeline:
    old, new = random.choice(line.columns()), _new_name(random)
    gone = random.choice(line.ours.columns)
    if gone == old or len(line.ours.columns) == 1:
        return line.then(
            f"rename {old} {new}",
            line.ours.rename(**{old: new}),
            line.theirs.withColumnRenamed(old, new),
        )
    return line.then(
        f"rename {old} {new} drop {gone}",
        line.ours.rename(**{old: new}).drop(gone),
        line.theirs.withColumnRenamed(old, new).drop(gone),
    )


def _pairs(random: Random, line: Pipeline, other: Pipeline) -> list[tuple[str, str]]:
    """Columns of both sides of equal types."""
    theirs = {name: other.ours.arrow_schema.field(name).type for name in other.columns()}
    found = [
        (one, two)
        for one in line.columns()
        for two, kind in theirs.items()
        if line.ours.arrow_schema.field(one).type == kind
    ]
    same = [pair for pair in found if pair[0] == pair[1]]
    found = same if same and random.random() < 0.7 else found
    random.shuffle(found)
    chosen: list[tuple[str, str]] = []
    for one, two in found:
        if one not in [a for a, _ in chosen] and two not in [b for _, b in chosen]:
            chosen.append((one, two))
    return chosen[: random.randint(1, 3)]


def _joined_once(
    line: Pipeline, other: Pipeline, keys: list[str], how: str, described: str
) -> Pipeline:
    names = right_names(line.ours.arrow_schema, other.ours.arrow_schema)
    right = other.theirs.toDF(
        *(name if name in keys else names[name] for name in other.ours.columns)
    )
    return line.then(
        described,
        line.ours.join(other.ours, on=keys, how=how),
        line.theirs.alias("one").join(right.alias("two"), on=keys, how=how),
        multiplied=True,
    ).with_one_name_each()


def _joined_apart(
    random: Random,
    line: Pipeline,
    other: Pipeline,
    pairs: list[tuple[str, str]],
    how: str,
    described: str,
) -> Pipeline:
    names = right_names(line.ours.arrow_schema, other.ours.arrow_schema)
    right = other.theirs.toDF(*(f"{names[name]}__" for name in other.ours.columns))
    right = right.toDF(*names.values())
    terms = [f"{one} = {names[two]}" for one, two in pairs]
    condition = None
    if random.random() < 0.4:
        condition = _both_sides(random, line, other, names)
        terms.append(f"({condition})")
    return line.then(
        f"{described} if {condition}",
        line.ours.join(
            other.ours,
            left_on=[one for one, _ in pairs],
            right_on=[two for _, two in pairs],
            how=how,
            condition=condition,
        ),
        line.theirs.join(right, fn.expr(" AND ".join(terms)), how),
        multiplied=True,
    )


_STEPS = [
    *(_filter, _select, _with_column, _group, _group, _distinct, _union, _sort, _first),
    *(_durable, _window, _window, _join, _join, _join, _join_free, _renamed),
]
