"""Where rows go by their keys: Spark's hash, partitioners, splitting, key ranges.

    >>> import pyarrow as pa
    >>> from millrace.keys import HashPartitioner, partition_ids, split
    >>> orders = pa.table({"customer": [7, 8, 7], "amount": [10, 20, 30]})
    >>> partition_ids(orders, "customer", 4).to_pylist()
    [3, 0, 3]
    >>> split(orders, HashPartitioner("customer", 4), first_row=0).part(3)["amount"].to_pylist()
    [10, 30]

Everything here is pure: the same rows give the same partitions in every process, and Spark's
`pmod(hash(customer), 4)` gives them too.
"""

from millrace.keys.clock import rotated_clock
from millrace.keys.hash import PARTITIONS_MAX, check_partitions, hash32, partition_ids
from millrace.keys.partitioner import (
    BroadcastPartitioner,
    CustomPartitioner,
    HashPartitioner,
    Partitioner,
    PartitionIds,
    RoundRobinPartitioner,
)
from millrace.keys.range_partitioner import RangePartitioner, sample_bounds
from millrace.keys.ranges import KEY_MAX, WHOLE, KeyRange, tile, unsigned
from millrace.keys.split import Split, split, split_stream
from millrace.keys.weight import choose

__all__ = [
    "KEY_MAX",
    "PARTITIONS_MAX",
    "WHOLE",
    "BroadcastPartitioner",
    "CustomPartitioner",
    "HashPartitioner",
    "KeyRange",
    "PartitionIds",
    "Partitioner",
    "RangePartitioner",
    "RoundRobinPartitioner",
    "Split",
    "check_partitions",
    "choose",
    "hash32",
    "partition_ids",
    "rotated_clock",
    "sample_bounds",
    "split",
    "split_stream",
    "tile",
    "unsigned",
]
