"""Events after the public definition of NEXMark: persons, auctions and bids of an auction house.

Of 50 events one is a person, three are auctions and the others bids. Ids rise; auctions and bids
refer to recent persons and auctions, some much more often than others. Times are disordered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

TIME = pa.timestamp("us", "UTC")
PERSONS = pa.schema(
    [("id", pa.int64()), ("city", pa.string()), ("state", pa.string()), ("ts", TIME)]
)
AUCTIONS = pa.schema(
    [("auction", pa.int64()), ("seller", pa.int64()), ("category", pa.int64()), ("opened", TIME)]
)
BIDS = pa.schema(
    [("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("ts", TIME)]
)
SOURCES = {"persons": PERSONS, "auctions": AUCTIONS, "bids": BIDS}
_OF, _PERSONS, _AUCTIONS = 50, 1, 3
_STATES = ("OR", "ID", "CA", "WA", "AZ", "NY")
_EVENT_US, _JITTER_US = 100_000, 2_000_000
_HOT = 4
Numbers = npt.NDArray[np.int64]


def nexmark(count: int, seed: int = 1) -> dict[str, pa.Table]:
    """The rows of so many events, by stream."""
    chance = np.random.default_rng(seed)
    number = np.arange(count)
    place, group = number % _OF, number // _OF
    times = number * _EVENT_US + chance.integers(0, _JITTER_US, count)
    is_person, is_bid = place < _PERSONS, place >= _PERSONS + _AUCTIONS
    is_auction = ~is_person & ~is_bid
    states = np.array(_STATES)[chance.integers(0, len(_STATES), count)]
    recent = chance.integers(0, 20, count)
    is_hot = chance.integers(0, _HOT, count) > 0
    auctions = group * _AUCTIONS + np.clip(place - _PERSONS, 0, _AUCTIONS - 1)
    seller = np.maximum(group - np.where(is_hot, group % 10, recent), 0)
    bid_on = np.maximum(auctions - np.where(is_hot, auctions % 30, recent * _AUCTIONS), 0)
    price = np.floor(10 ** (chance.random(count) * 4 + 2)).astype(np.int64)

    def at(chosen: npt.NDArray[np.bool_]) -> pa.Array:
        return pa.array(times[chosen], pa.int64()).cast(TIME)

    return {
        "persons": pa.table(
            [
                group[is_person],
                [f"city {n % 7}" for n in group[is_person]],
                states[is_person],
                at(is_person),
            ],
            schema=PERSONS,
        ),
        "auctions": pa.table(
            [auctions[is_auction], seller[is_auction], auctions[is_auction] % 12, at(is_auction)],
            schema=AUCTIONS,
        ),
        "bids": pa.table(
            [bid_on[is_bid], recent[is_bid] + group[is_bid], price[is_bid], at(is_bid)], schema=BIDS
        ),
    }
