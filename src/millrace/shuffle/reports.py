"""What a run reports to its user: the map tasks of each stage, and what a query did in all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.shuffle.fetch_counts import FetchCounts
from millrace.text import counted, human_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """Which map tasks of a stage ran, which were reused, and why the others were not.

    `again` are map tasks that finished in this run and had to run once more. `notes` say what was
    chosen after earlier stages had been measured. A shuffle has one stage, which has no name. The
    `rows` and `bytes` of a query's stage are what it wrote. `fetched` is what its map tasks read
    through agents of other hosts.

    Example:
        >>> first = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=4)
        >>> report = ws.shuffle("orders/*.parquet", keys="cust_id", partitions=4).report
        >>> report.map_tasks, report.reused  # both files were done before
        (2, 2)
    """

    name: str = ""
    map_tasks: int = 0
    reused: int = 0
    seconds: float = 0.0
    reasons: Mapping[int, str] = field(default_factory=dict)
    again: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    fetched: FetchCounts = field(default_factory=FetchCounts)

    @property
    def ran(self) -> int:
        """Map tasks that were run.

        Example:
            >>> shuffle.report.ran
            2
        """
        return self.map_tasks - self.reused

    def __str__(self) -> str:
        text = f"{counted(self.ran, 'map task')} run, {self.reused} reused, {self.seconds:.1f} s"
        if self.name:
            text = f"{self.name}: {text}"
        for how, reasons in (("run", self.reasons), ("run again", self.again)):
            for reason in sorted(set(reasons.values())):
                count = sum(1 for other in reasons.values() if other == reason)
                text += f"\n  {count} {how} because: {reason}"
        fetched = [str(self.fetched)] if self.fetched else []
        return "\n  ".join([text, *self.notes, *fetched])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReport:
    """What `run()` of a dataset did, stage by stage, and the size of the answer.

    DataFrames that were saved for the query come first in `stages`.

    Example:
        >>> counted = orders.group_by("cust_id").agg(n="count(*)")
        >>> report = counted.run()
        >>> report.rows, [stage.name for stage in report.stages]
        (2, ['stage 0'])
        >>> print(counted.run())
        0 map tasks run, 1 reused, 2 rows in ...
        stage 0: 0 map tasks run, 1 reused, ...
    """

    stages: tuple[StageReport, ...] = ()
    rows: int = 0
    bytes: int = 0

    @property
    def map_tasks(self) -> int:
        """Map tasks of all stages.

        Example:
            >>> orders.run().map_tasks  # one for each file
            2
        """
        return sum(stage.map_tasks for stage in self.stages)

    @property
    def ran(self) -> int:
        """Map tasks that were run, over all stages.

        Example:
            >>> first = orders.run()
            >>> orders.run().ran  # nothing runs a second time
            0
        """
        return sum(stage.ran for stage in self.stages)

    @property
    def reused(self) -> int:
        """Map tasks that an earlier run had finished, over all stages.

        Example:
            >>> first = orders.run()
            >>> orders.run().reused
            2
        """
        return sum(stage.reused for stage in self.stages)

    def __str__(self) -> str:
        tasks = f"{counted(self.ran, 'map task')} run, {self.reused} reused"
        total = f"{tasks}, {counted(self.rows, 'row')} in {human_bytes(self.bytes)}"
        return "\n".join([total, *map(str, self.stages)])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWritten:
    """What a dataset wrote into a table of others."""

    table: str
    version: int | None
    """The version of the table; None if the commit of an interrupted write was there already."""
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetWritten:
    """What `write_parquet` wrote.

    Example:
        >>> written = orders.write_parquet("copy")
        >>> written.rows
        3
    """

    path: str
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSize:
    """What is in one partition, over all map tasks.

    Example:
        >>> shuffle.sizes[1].rows
        2
    """

    partition: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The result of a check of every byte.

    Example:
        >>> check = shuffle.verify()
        >>> check.map_outputs, check.problems
        (2, ())
    """

    partitions: int
    map_outputs: int
    bytes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything was found right.

        Example:
            >>> shuffle.verify().ok
            True
        """
        return not self.problems
