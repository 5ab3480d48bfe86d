"""Random expressions over nested columns, each of a known type, so that most of them are legal."""

from __future__ import annotations

import random
from typing import Final

_LEAVES: Final = {
    "array": ["ai", "aj", "array(i, 2)", "array(1, null)", "st.c.e", "ast.k"],
    "int": ["i", "1", "2", "-1", "m['a']", "st.a", "cast(null as int)"],
    "boolean": ["i > 1", "ai is null", "true"],
    "map": ["m", "map('k', i)", "map('a', 1, 'b', 2)"],
    "nested": ["aa", "array(ai, aj)", "array(aj)"],
    "struct": ["struct(i AS p, ai AS q)", "named_struct('p', 1, 'q', aj)"],
}
_FORMS: Final = {
    "array": [
        *("array_union({array}, {array})", "array_except({array}, {array})"),
        *("array_intersect({array}, {array})", "array_distinct({array})", "reverse({array})"),
        *("array_remove({array}, {int})", "array_append({array}, {int})", "{struct}.q"),
        *("array_prepend({array}, {int})", "array_insert({array}, {index}, {int})"),
        *("filter({array}, x -> x > {int})", "filter({array}, (x, n) -> n <> {int})"),
        *("slice({array}, {index}, 2)", "concat({array}, {array})", "sort_array({array})"),
        *("sort_array({array}, false)", "array_sort({array})", "array_compact({array})"),
        *("flatten({nested})", "coalesce({array}, {array})", "if({boolean}, {array}, {array})"),
        *("transform({array}, x -> coalesce(x, {int}))", "map_values({map})"),
        *("transform({nested}, x -> size(x))", "get({nested}, 0)", "array_repeat({int}, 2)"),
        *("zip_with({array}, {array}, (x, y) -> coalesce(x, y, {int}))", "array({int}, {int})"),
        *("transform({array}, x -> array_max(filter({array}, y -> y <> x)))",),
        *("aggregate({array}, {array}, (acc, x) -> array_append(acc, x))",),
    ],
    "int": [
        *("size({array})", "array_max({array})", "array_min({array})", "get({array}, {index})"),
        *("try_element_at({array}, {index})", "coalesce({int}, {int})", "size({map})"),
        *("aggregate({array}, {int}, (acc, x) -> coalesce(x, acc))", "{map}['b']", "{struct}.p"),
        *("cast(array_position({array}, {int}) as int)", "if({boolean}, {int}, {int})"),
        *("element_at({map}, 'a')", "size({nested})", "greatest({int}, {int})"),
    ],
    "boolean": [
        *("array_contains({array}, {int})", "exists({array}, x -> x > {int})"),
        *("forall({array}, x -> x > {int})", "arrays_overlap({array}, {array})"),
        *("{array} = {array}", "{array} < {array}", "{array} <=> {array}", "{int} > {int}"),
        *("{array} is null", "({boolean} and {boolean})", "not {boolean}", "{struct} = {struct}"),
        *("{struct} >= {struct}", "exists({nested}, x -> array_contains(x, {int}))"),
        *("map_contains_key({map}, 'a')", "array_contains({nested}, {array})"),
        *("{array} in ({array}, {array})", "{nested} < {nested}"),
    ],
    "map": [
        *("map_filter({map}, (k, v) -> v > {int})", "if({boolean}, {map}, {map})"),
        *("transform_values({map}, (k, v) -> coalesce(v, {int}))", "coalesce({map}, {map})"),
        *("map_concat(map('k', {int}), map('q', {int}))", "map('a', {int}, 'b', {int})"),
        *("map_zip_with({map}, {map}, (k, v, w) -> coalesce(w, v))",),
    ],
    "nested": [
        *("array({array}, {array})", "transform({nested}, x -> array_distinct(x))"),
        *("filter({nested}, x -> size(x) > {int})", "sort_array({nested})", "reverse({nested})"),
        *("array_distinct({nested})", "array_union({nested}, {nested})", "array_sort({nested})"),
        *("transform({array}, x -> array(x, {int}))", "concat({nested}, {nested})"),
        *("transform({nested}, x -> transform(x, y -> coalesce(y, size(x))))",),
    ],
    "struct": [
        *("named_struct('p', {int}, 'q', {array})", "if({boolean}, {struct}, {struct})"),
        *("coalesce({struct}, {struct})", "get(sort_array(array({struct}, {struct})), 0)"),
    ],
}


def random_expressions(seed: int, count: int, *, depth: int = 3) -> list[str]:
    """Different expressions of random types."""
    source = random.Random(seed)  # noqa: S311 - for tests
    out: dict[str, None] = {}
    while len(out) < count:
        out[_written(source, source.choice(list(_FORMS)), depth)] = None
    return list(out)


def _written(source: random.Random, kind: str, depth: int) -> str:
    if kind == "index":
        return str(source.choice([1, 2, 3, -1, -2, 5]))
    if depth == 0 or source.random() < 0.15:
        return source.choice(_LEAVES[kind])
    form = source.choice(_FORMS[kind])
    out, rest = "", form
    while "{" in rest:
        before, _, rest = rest.partition("{")
        name, _, rest = rest.partition("}")
        out += before + _written(source, name, depth - 1)
    return out + rest
