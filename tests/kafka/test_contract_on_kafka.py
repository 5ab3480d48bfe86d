"""The contract that every broker keeps, on real Kafka: the very tests of the other brokers."""

from __future__ import annotations

from tests.unit.journal import test_contract, test_many, test_producers, test_transactions
from tests.unit.journal.test_producers import three
from tests.unit.journal.test_transactions import two

__all__ = ["three", "two"]

SHARED = (test_contract, test_many, test_producers, test_transactions)

globals().update(
    {
        name: test
        for module in SHARED
        for name, test in vars(module).items()
        if name.startswith("test_")
    }
)


def test_all_of_the_contract_is_here() -> None:
    here = [name for name in globals() if name.startswith("test_")]
    there = [name for module in SHARED for name in vars(module) if name.startswith("test_")]

    assert len(there) == len(set(there)) > 40
    assert set(there) < set(here)
