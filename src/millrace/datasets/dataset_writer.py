"""`dataset.write`: rows as files and tables, under Spark's words.

Parquet files are written here: all of a folder or nothing of it. For everything else Spark writes
the saved rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from millrace.datasets.dataset_results import DatasetResults
from millrace.durations import Duration, milliseconds
from millrace.extras import import_for, missing_modules
from millrace.identity.schemas import plain_schema
from millrace.journal.kafka.sink.kafka_target import (
    PLACES,
    KafkaTarget,
    check_columns,
    kafka_target,
)
from millrace.names import check_text, path_text
from millrace.scan.partition_paths import names_folders
from millrace.shuffle.reports import TableWritten
from millrace.sql.name_checks import check_unique_labels
from millrace.storage.file_systems import is_remote
from millrace.storage.storage_options import storage_options as access_options
from millrace.tables.delta.delta_target import DeltaTarget
from millrace.tables.delta.log_folder import is_reached, local_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrameWriter, DataFrameWriterV2
    from pyspark.sql.merge import MergeIntoWriter

_MODES: Final = {None: "error", "error": "error", "errorifexists": "error", "default": "error"} | {
    "overwrite": "overwrite"
}
_OWN_OPTIONS: Final = frozenset({"compression"})
_REPLACE_WHERE: Final = "replacewhere"


@dataclass(frozen=True, slots=True, repr=False)
class DatasetWriter:
    """How and where rows are written. Each call gives a changed writer; the last one writes."""

    _dataset: DatasetTables
    _format: str = "parquet"
    _mode: str | None = None
    _options: dict[str, Any] = field(default_factory=dict)
    _calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def mode(self, saveMode: str | None) -> Self:
        """What happens if there is something already: error, overwrite, append or ignore."""
        return replace(self, _mode=None if saveMode is None else saveMode.lower())

    def format(self, source: str) -> Self:
        """The format: parquet, csv, json, orc, or any other that Spark knows."""
        return replace(self, _format=source.lower())

    def option(self, key: str, value: object) -> Self:
        """An option of the format."""
        return replace(self, _options={**self._options, key.lower(): value})

    def options(self, **options: object) -> Self:
        """Options of the format."""
        lowered = {key.lower(): value for key, value in options.items()}
        return replace(self, _options={**self._options, **lowered})

    def partitionBy(self, *cols: str | list[str]) -> Self:
        """A folder for each value of these columns."""
        return replace(self, _calls=(*self._calls, ("partitionBy", cols)))

    def bucketBy(self, numBuckets: int, col: str | Sequence[str], *cols: str) -> Self:
        """Buckets by these columns, for tables of a catalog."""
        return replace(self, _calls=(*self._calls, ("bucketBy", (numBuckets, col, *cols))))

    def sortBy(self, col: str | Sequence[str], *cols: str) -> Self:
        """The order in each bucket."""
        return replace(self, _calls=(*self._calls, ("sortBy", (col, *cols))))

    def clusterBy(self, *cols: str | list[str]) -> Self:
        """Columns that rows are put together by."""
        return replace(self, _calls=(*self._calls, ("clusterBy", cols)))

    def parquet(
        self,
        path: str | os.PathLike[str],
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        compression: str | None = None,
    ) -> None:
        """Write Parquet files."""
        self._to("parquet", path, mode, partitionBy, {"compression": compression})

    def csv(self, path: str, mode: str | None = None, *more: object, **options: object) -> None:
        """Write CSV files; options are those of Spark's `csv`, by position or by name."""
        self._by_spark(lambda writer: _call(writer.csv, path, mode, *more, **options))

    def json(self, path: str, mode: str | None = None, *more: object, **options: object) -> None:
        """Write JSON files; options are those of Spark's `json`, by position or by name."""
        self._by_spark(lambda writer: _call(writer.json, path, mode, *more, **options))

    def text(self, path: str, *more: object, **options: object) -> None:
        """Write one column of text."""
        self._by_spark(lambda writer: _call(writer.text, path, *more, **options))

    def orc(
        self,
        path: str,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        compression: str | None = None,
    ) -> None:
        """Write ORC files."""
        self._to("orc", path, mode, partitionBy, {"compression": compression})

    def xml(self, path: str, *more: object, **options: object) -> None:
        """Write XML files; options are those of Spark's `xml`, by position or by name."""
        self._by_spark(lambda writer: _call(writer.xml, path, *more, **options))

    def save(
        self,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,  # noqa: A002 - Spark's
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        **options: object,
    ) -> None:
        """Write to a path in the format that was chosen."""
        self._to(format or self._format, path, mode, partitionBy, options)

    def saveAsTable(
        self,
        name: str,
        format: str | None = None,  # noqa: A002 - Spark's
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,
        **options: object,
    ) -> None:
        """Write a table of Spark's catalog; Spark writes it."""
        chosen = self._changed(format or self._format, mode, partitionBy, options)
        chosen._by_spark(lambda writer: writer.saveAsTable(name))

    def insertInto(self, tableName: str, overwrite: bool | None = None) -> None:
        """Add rows to a table of Spark's catalog; Spark writes them."""
        self._by_spark(lambda writer: writer.insertInto(tableName, overwrite))

    def jdbc(
        self,
        url: str,
        table: str,
        mode: str | None = None,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Write to a database; Spark writes it."""
        self._by_spark(lambda writer: writer.jdbc(url, table, mode, properties))

    def _to(
        self,
        source: str,
        path: str | os.PathLike[str] | None,
        mode: str | None,
        by: str | list[str] | None,
        options: dict[str, Any],
    ) -> None:
        chosen = self._changed(source.lower(), mode, by, options)
        if path is not None and chosen._is_own:
            compression = str(chosen._options.get("compression", "snappy"))
            kind = "none" if compression == "uncompressed" else compression
            chosen._dataset.write_parquet(
                path, _MODES[chosen._mode], compression=kind, partition_by=chosen._partitions
            )
            return
        if path is not None and chosen._is_delta and is_reached(os.fspath(path)):
            mode = "overwrite" if chosen._mode == "overwrite" else "append"
            where = chosen._options.get(_REPLACE_WHERE)
            by_columns = chosen._partitions or None
            chosen._dataset.write_delta(path, mode, partition_by=by_columns, replace_where=where)
            return
        text = None if path is None else os.fspath(path)
        chosen._by_spark(lambda writer: writer.save(text))

    def _changed(
        self,
        source: str,
        mode: str | None,
        by: str | list[str] | None,
        options: dict[str, Any],
    ) -> Self:
        given = {key.lower(): value for key, value in options.items() if value is not None}
        writer = replace(
            self,
            _format=source,
            _mode=self._mode if mode is None else mode.lower(),
            _options={**self._options, **given},
        )
        return writer if by is None else writer.partitionBy(by)

    @property
    def _is_own(self) -> bool:
        return (
            self._format == "parquet"
            and self._mode in _MODES
            and self._has_own_folders
            and self._options.keys() <= _OWN_OPTIONS
        )

    @property
    def _has_own_folders(self) -> bool:
        """Whether partition folders, if there are any, are named and replaced as here."""
        if not self._calls:
            return True
        if any(method != "partitionBy" for method, _ in self._calls):
            return False
        dataset = self._dataset
        kinds = {field.name: field.type for field in dataset.arrow_schema}
        if not all(name in kinds and names_folders(kinds[name]) for name in self._partitions):
            return False  # Spark takes times and fractions, and a name in another case.
        return self._mode != "overwrite" or not dataset._runner.keeps_partitions

    @property
    def _partitions(self) -> list[str]:
        """The partition columns; of several calls the last one counts, as in Spark."""
        named = [names for method, names in self._calls if method == "partitionBy"]
        return _flat(named[-1]) if named else []

    @property
    def _is_delta(self) -> bool:
        """Whether rows are written as `write_delta` does; else Spark's connector writes them."""
        partitions = all(method == "partitionBy" for method, _ in self._calls)
        known = {_REPLACE_WHERE} if self._mode == "overwrite" else set()
        is_known = self._mode in ("append", "overwrite") and self._options.keys() <= known
        is_ours = self._format == "delta" and is_known and partitions
        return is_ours and not missing_modules("delta")

    def _by_spark(self, write: Callable[[DataFrameWriter], None]) -> None:
        writer = self._dataset.to_spark().write.format(self._format).options(**self._options)
        if self._mode is not None:
            writer = writer.mode(self._mode)
        for method, arguments in self._calls:
            writer = getattr(writer, method)(*arguments)
        write(writer)


def _flat(names: Sequence[Any]) -> list[str]:
    """Names of columns, given one by one or as a list."""
    return [one for name in names for one in ([name] if isinstance(name, str) else name)]


def _call(
    write: Callable[..., None], path: str | os.PathLike[str], *arguments: object, **options: object
) -> None:
    """A method of Spark's writer that names a format."""
    write(os.fspath(path), *arguments, **options)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetTables(DatasetResults):
    """A dataset's rows as Delta tables and topics."""

    def write_delta(
        self,
        uri: str | os.PathLike[str],
        mode: str = "append",
        *,
        partition_by: str | Sequence[str] | None = None,
        replace_where: str | None = None,
        keys: str | Sequence[str] = (),
        delete_column: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> TableWritten:
        """Write the rows into a Delta table, in one commit. It is made if there is none.

        If the write is cut off and made again, in this process or a later one, its rows are
        committed once. When it has come to its end, the next call is another write.

        Args:
            uri: a folder on a disk that all hosts share, or an address at s3://, gs:// or abfss://.
            mode: "append", "overwrite" for these rows in place of others, or "upsert" by `keys`.
            partition_by: the partition columns of a table that is made.
            replace_where: with "overwrite": a condition; only rows for which it is true are
                replaced, and it must be true for all new rows.
            keys: with "upsert": columns; a row takes the place of the rows with the same keys.
            delete_column: with "upsert": a column of booleans that is not written; where it is
                true, the rows with the same keys go.
            storage_options: how a bucket is reached if the environment does not say.

        Example:
            >>> written = orders.write_delta("tables/all-orders", mode="overwrite")
            >>> ws.read_delta("tables/all-orders", version=written.version).count()
            3
        """
        check_unique_labels(self._relation.labels, "write_delta()")
        text = path_text(uri, "write_delta")
        by = (partition_by,) if isinstance(partition_by, str) else partition_by
        target = DeltaTarget(
            uri=text if is_remote(text) else local_table(text),
            partition_by=None if by is None else tuple(by),
            options=access_options(storage_options),
            keys=(keys,) if isinstance(keys, str) else tuple(keys),
            delete_column=delete_column,
        )
        return self._runner.write_delta(self._plan, target, mode, replace_where)

    def write_kafka(
        self,
        topic: str,
        *,
        bootstrap: str,
        value: str | None = None,
        key: str | None = None,
        headers: str | None = None,
        partition: str | None = None,
        once: str | None = None,
        timeout: Duration = "60s",
        places: str = PLACES,
        settings: Mapping[str, str] | None = None,
    ) -> int:
        """Write the rows to a topic of Kafka in one transaction: all or none; how many there are.

        Readers see them so if they read committed messages alone.

        Args:
            topic: an existing topic.
            bootstrap: `host:9092`, more hosts after commas.
            value: the column with a message's value, binary or text. By default the whole row is
                the value, as a JSON object.
            key: the column with its key, binary or text.
            headers: the column with its headers: an array of structs of key and value, or a map.
            partition: the column with its partition. By default the key decides, as in Kafka.
            once: names this write, as a date does: what was written under a name is not written
                again, also after a kill.
            timeout: how long the transaction may take. If this process is killed in it, readers of
                committed messages wait for so long, or until a write of the same name begins.
            places: the topic that has the names of writes; made if there is none.
            settings: of Kafka's client, as to log in; kept in memory alone. Those in the file that
                MILLRACE_KAFKA_SETTINGS names hold, too.

        Example:
            >>> write = orders.write_kafka  # write("orders", bootstrap="kafka.example:9092")
        """
        check_unique_labels(self._relation.labels, "write_kafka()")
        call = f"write_kafka({topic!r})"
        given = KafkaTarget(
            topic=topic,
            servers=bootstrap,
            value=value,
            key=key,
            headers=headers,
            partition=partition,
            places=places,
        )
        target = kafka_target(call, given, settings)
        check_columns(call, plain_schema(self.arrow_schema), target)
        if once is not None:
            check_text(once, f"{call}: a write")
        limit_ms = milliseconds(timeout, f"{call}: timeout")
        module = import_for("millrace.journal.kafka.sink.whole_messages", "kafka", call)
        write = module.WholeMessages(
            target=target, once=once, limit_ms=limit_ms, config=self._runner.config, who=call
        )
        written: int | None = write.prepare()
        if written is None:
            written = int(write.write(self._runner.rows_again(self._plan)))
        return written


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DatasetWrites(DatasetTables):
    """A dataset's rows as files and tables."""

    @property
    def write(self) -> DatasetWriter:
        """Writes rows as Spark's `write` does: `write.mode("overwrite").parquet(path)`."""
        return DatasetWriter(self)

    def writeTo(self, table: str) -> DataFrameWriterV2:
        """Writes rows to a table of Spark's catalog; the query runs now, Spark writes."""
        return self.to_spark().writeTo(table)

    def mergeInto(self, table: str, condition: Column) -> MergeIntoWriter:
        """Merges rows into a table of Spark's catalog; the query runs now, Spark merges.

        The condition and the writer are Spark's: columns come from `pyspark.sql.functions`.
        """
        return self.to_spark().mergeInto(table, condition)
