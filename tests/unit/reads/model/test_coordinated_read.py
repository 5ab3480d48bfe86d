"""What a coordinated read may be, and what is said of one that may not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millrace.errors import UserError
from millrace.journal.core.clocks import CLOCK_MAX, clock_at
from millrace.reads.model.coordinated_read import Binding, CoordinatedRead

MS = 1_000_000
FULL = {
    "name": "totals",
    "bindings": [
        {
            "name": "orders",
            "prefix": "acme/orders",
            "labels": {"region": ["eu", "us"], "kind": "live"},
            "key": ["cust_id"],
            "priority": 3,
            "read_delay": "5s",
            "not_before_ms": 10,
            "not_after_ms": 20,
        },
        {"name": "users", "prefix": "acme/users", "key": ["/user/id", "/user/at"]},
    ],
}


def binding(**given: Any) -> Binding:  # noqa: ANN401
    return Binding(**{"name": "b", "prefix": "p", **given})


def test_a_task_comes_back_from_plain_values_as_it_was() -> None:
    read = CoordinatedRead.from_dict(FULL)

    again = CoordinatedRead.from_dict(json.loads(json.dumps(read.to_dict())))

    assert again == read
    assert again.to_dict() == read.to_dict()
    orders, users = read.bindings
    assert (orders.priority, orders.read_delay, orders.key) == (3, 5.0, ("cust_id",))
    assert (users.priority, users.read_delay, users.labels) == (0, 0, {})
    assert FULL["bindings"][0].items() <= read.to_dict()["bindings"][0].items()  # type: ignore[attr-defined]


def test_one_key_column_may_be_given_by_itself() -> None:
    assert binding(key="id").key == ("id",)
    assert binding(key=["a", "b"]).key == ("a", "b")


def test_a_binding_selects_journals_by_prefix_and_labels() -> None:
    selector = binding(prefix="acme/orders", labels={"region": ["eu", "us"]}).selector

    assert selector.takes("acme/orders/1", {"region": "eu"})
    assert not selector.takes("acme/orders/1", {"region": "asia"})
    assert not selector.takes("acme/orders-old", {"region": "eu"})


def test_cohorts_are_pairs_of_priority_and_delay_in_the_order_of_bindings() -> None:
    given = [(1, 0), (0, 0), (1, 0), (1, 5), (0, 0), (0, 5)]
    bindings = [
        binding(name=f"b{place}", priority=priority, read_delay=delay)
        for place, (priority, delay) in enumerate(given)
    ]

    assert CoordinatedRead("t", bindings).cohorts() == (0, 1, 0, 2, 1, 3)


def test_moments_and_delays_are_clocks() -> None:
    given = binding(read_delay="5ms", not_before_ms=10, not_after_ms=20)

    assert given.delay == clock_at(5 * MS)
    assert given.lowest_clock == clock_at(10 * MS)
    assert given.highest_clock == clock_at(21 * MS) - 1
    assert (binding().lowest_clock, binding().highest_clock, binding().delay) == (0, CLOCK_MAX, 0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "'' cannot name a binding"),
    ({"name": 5}, "5 cannot name a binding\n  found: a value of type int"),
    ({"name": "a b"}, "'a b' cannot name a binding"),
    ({"name": "x" * 101}, "cannot name a binding"),
    ({"key": ["id", "/user/id"]}, "key id, /user/id mixes columns and JSON pointers"),
    ({"key": [5]}, "key 5 is no text"),
    ({"key": [""]}, "key '' is empty"),
    ({"key": ["id", "id"]}, "key id is given twice"),
    ({"key": 5}, "key is 5"),
    ({"prefix": 5}, "prefix is 5"),
    ({"labels": ["eu"]}, "labels is ['eu']"),
    ({"labels": {"region": 5}}, "label region is 5"),
    ({"priority": 2**31}, "priority 2147483648 does not fit 32 bits"),
    ({"priority": -(2**31) - 1}, "does not fit 32 bits"),
    ({"priority": "high"}, "priority is 'high'"),
    ({"priority": 1.5}, "priority is 1.5"),
    ({"priority": True}, "priority is True"),
    ({"read_delay": -1}, "read_delay is out of range found: -1"),
    ({"read_delay": None}, "read_delay is not a time found: None"),
    ({"not_before_ms": 5, "not_after_ms": 4}, "not_before_ms 5 is after not_after_ms 4"),
    ({"not_after_ms": "today"}, "not_after_ms is 'today'"),
    ({"not_before_ms": 2**62}, "not_before_ms 4611686018427387904 is no moment"),
    ({"not_after_ms": -1}, "not_after_ms -1 is no moment"),
    ({"read_delay": "100000d"}, "read_delay is out of range found: '100000d'"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_a_binding_that_cannot_be_meant_is_refused_with_the_reason(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        binding(**given)
    assert said in str(caught.value)
    with pytest.raises(UserError) as caught:
        CoordinatedRead.from_dict(
            {"name": "t", "bindings": [{"name": "b", "prefix": "p", **given}]}
        )
    has_name = isinstance(given.get("name", "b"), str)
    assert (said if has_name else "a binding needs a name") in str(caught.value)


TASKS: list[tuple[dict[str, Any], str]] = [
    ({"name": "t"}, "a coordinated read needs a name and a list of bindings"),
    ({"bindings": []}, "a coordinated read needs a name and a list of bindings"),
    ({"name": 5, "bindings": []}, "a coordinated read needs a name and a list of bindings"),
    ({"name": "t", "bindings": []}, "coordinated read t has no bindings"),
    ({"name": "a/b", "bindings": []}, "'a/b' cannot name a coordinated read"),
    ({"name": "t", "bindings": {}, "x": 1}, "coordinated read has an unknown field 'x'"),
    ({"name": "t", "binding": []}, "did you mean bindings?"),
    ({"name": "t", "bindings": [5]}, "a binding needs a name"),
    ({"name": "t", "bindings": [{"prefix": "p"}]}, "a binding needs a name"),
    ({"name": "t", "bindings": [{"name": "b"}]}, "prefix"),
    (
        {"name": "t", "bindings": [{"name": "b", "prefix": "p", "prioritty": 1}]},
        "binding b has an unknown field 'prioritty'",
    ),
    (
        {"name": "t", "bindings": [{"name": "b", "prefix": "p"}, {"name": "b", "prefix": "q"}]},
        "coordinated read t has two bindings b",
    ),
]


@pytest.mark.parametrize(("given", "said"), TASKS)
def test_a_task_that_cannot_be_meant_is_refused_with_the_reason(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        CoordinatedRead.from_dict(given)
    assert said in str(caught.value)
