"""Arguments of a shuffle that are wrong are refused before anything runs."""

from __future__ import annotations

import pytest

from millrace.errors import UserError
from millrace.execute.shuffle_requests import ShuffleArguments, check_reuse, make_partitioner
from millrace.keys import HashPartitioner, RoundRobinPartitioner


def arguments(partitioner: str, keys: str | None) -> ShuffleArguments:
    return ShuffleArguments(
        keys=keys, partitions=3, partitioner=partitioner, bounds=None, version=None, reuse=True
    )


@pytest.mark.parametrize("reuse", ["yes", "no", "", None, 1, 0])
def test_reuse_is_true_false_or_verified(reuse: object) -> None:
    with pytest.raises(UserError, match="use True, False or 'verified'"):
        check_reuse(reuse)
    for right in (True, False, "verified"):
        check_reuse(right)


def test_each_partitioner_says_whether_it_wants_keys() -> None:
    assert make_partitioner(arguments("hash", "k")) == HashPartitioner(["k"], 3)
    assert make_partitioner(arguments("round_robin", None)) == RoundRobinPartitioner(3)
    for name in ("hash", "range"):
        with pytest.raises(UserError, match=f"a {name} shuffle needs keys"):
            make_partitioner(arguments(name, None))
    for name in ("round_robin", "broadcast"):
        with pytest.raises(UserError, match=f"a {name} shuffle has no keys"):
            make_partitioner(arguments(name, "k"))
    with pytest.raises(UserError, match="unknown partitioner"):
        make_partitioner(arguments("modulo", "k"))
