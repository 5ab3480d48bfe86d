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

from millrace.keys.consistent_hash import choose
from millrace.keys.key_ranges import KEY_MAX, WHOLE, KeyRange, tile, unsigned
from millrace.keys.partitioner import (
    BroadcastPartitioner,
    CustomPartitioner,
    HashPartitioner,
    Partitioner,
    PartitionIds,
    RoundRobinPartitioner,
)
from millrace.keys.range_partitioner import RangePartitioner, sample_bounds
from millrace.keys.rotated_clock import rotated_clock
from millrace.keys.spark_hash import PARTITIONS_MAX, check_partitions, hash32, partition_ids
from millrace.keys.split import PartitionedBatch, split, split_stream

__all__ = [
    "KEY_MAX",
    "PARTITIONS_MAX",
    "WHOLE",
    "BroadcastPartitioner",
    "CustomPartitioner",
    "HashPartitioner",
    "KeyRange",
    "PartitionIds",
    "PartitionedBatch",
    "Partitioner",
    "RangePartitioner",
    "RoundRobinPartitioner",
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
