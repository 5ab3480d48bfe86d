"""Names are spread evenly over members, and few move when a member is added."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.errors import UserError
from millrace.keys.consistent_hash import choose

NAMES = [f"orders/{number}" for number in range(5_000)]


def test_every_member_gets_about_as_many_names() -> None:
    for members in (1, 2, 10, 100):
        counts = Counter(choose(name, members) for name in NAMES)
        assert sorted(counts) == list(range(members))
        share = len(NAMES) / members
        assert all(share / 2 <= count <= share * 2 for count in counts.values())


def test_with_one_member_more_names_move_to_it_alone() -> None:
    for members in (1, 9, 999):
        moved = [
            choose(n, members + 1) for n in NAMES if choose(n, members) != choose(n, members + 1)
        ]
        assert set(moved) <= {members}
        assert len(moved) < 2 * len(NAMES) / (members + 1) + 10


def test_the_choice_is_the_same_in_every_process() -> None:
    assert [choose(name, 1000) for name in NAMES[:4]] == [99, 337, 606, 804]


def test_without_members_there_is_no_choice() -> None:
    with pytest.raises(UserError, match="nobody to choose"):
        choose("a", 0)
