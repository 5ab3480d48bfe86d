"""`dataset.write`: rows as files and tables, under Spark's words.

Parquet files without partition folders are written here: all of a folder or nothing of it. For
everything else Spark writes the saved rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from millrace.datasets.dataset_results import DatasetResults
from millrace.extras import missing_modules
from millrace.tables.delta.log_folder import is_reached

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrameWriter, DataFrameWriterV2
    from pyspark.sql.merge import MergeIntoWriter

_MODES: Final = {None: "error", "error": "error", "errorifexists": "error", "default": "error"} | {
    "overwrite": "overwrite"
}
_OWN_OPTIONS: Final = frozenset({"compression"})


@dataclass(frozen=True, slots=True, repr=False)
class DatasetWriter:
    """How and where rows are written. Each call gives a changed writer; the last one writes."""

    _dataset: DatasetResults
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
            chosen._dataset.write_parquet(path, _MODES[chosen._mode], compression=kind)
            return
        if path is not None and chosen._is_delta and is_reached(os.fspath(path)):
            by_columns = [name for _, names in chosen._calls for name in _flat(names)]
            mode = "overwrite" if chosen._mode == "overwrite" else "append"
            chosen._dataset.write_delta(path, mode, partition_by=by_columns or None)
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
            and not self._calls
            and self._options.keys() <= _OWN_OPTIONS
        )

    @property
    def _is_delta(self) -> bool:
        """Whether rows are written as `write_delta` does; else Spark's connector writes them."""
        partitions = all(method == "partitionBy" for method, _ in self._calls)
        is_known = self._mode in ("append", "overwrite") and not self._options
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
class DatasetWrites(DatasetResults):
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
