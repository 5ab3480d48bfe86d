"""`ws.read`, with the calls of `spark.read`. Spark's own reader reads what is not read natively."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from millrace.datasets.dataset import Dataset
from millrace.errors import UserError
from millrace.extras import missing_modules
from millrace.names import path_text
from millrace.spark.workspace_runtime import WorkspaceRuntime
from millrace.tables.delta.log_folder import is_reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_NATIVE: Final = frozenset({"parquet"})
"""Formats whose files are read natively as long as no schema and no option is given."""
_ID: Final = "snapshot-id"
_SNAPSHOT_OPTIONS: Final = frozenset({_ID, "branch", "tag"})
"""What Spark's Iceberg connector calls a snapshot."""


@dataclass(frozen=True, slots=True, repr=False)
class DataFrameReader:
    """Reads files as datasets, with the names of PySpark's reader.

    Example:
        >>> ws.read.parquet("orders/").columns
        ['cust_id', 'amount']
    """

    _runtime: WorkspaceRuntime
    _format: str = "parquet"
    _schema: StructType | str | None = None
    _options: Mapping[str, Any] = field(default_factory=dict)

    def format(self, source: str) -> DataFrameReader:
        """The kind of files, as Spark names it.

        Example:
            >>> ws.read.format("parquet").load("orders/").count()
            3
        """
        return replace(self, _format=source)

    def schema(self, schema: StructType | str) -> DataFrameReader:
        """The columns to read, as Spark's schema or as text. Spark reads the files then.

        Example:
            >>> ws.read.schema("cust_id BIGINT").parquet("orders/").columns
            ['cust_id']
        """
        return replace(self, _schema=schema)

    def option(self, key: str, value: Any) -> DataFrameReader:  # noqa: ANN401 - as in PySpark
        """An option of the format. Spark reads the files then.

        Example:
            >>> ws.read.option("mergeSchema", True).parquet("orders/").count()
            3
        """
        return replace(self, _options={**self._options, key: value})

    def options(self, **options: Any) -> DataFrameReader:  # noqa: ANN401 - as in PySpark
        """Several options.

        Example:
            >>> ws.read.options(mergeSchema=True).parquet("orders/").count()
            3
        """
        return replace(self, _options={**self._options, **options})

    def load(
        self,
        path: str | os.PathLike[str] | list[str] | None = None,
        format: str | None = None,  # noqa: A002 - as in PySpark
        schema: StructType | str | None = None,
        **options: Any,  # noqa: ANN401 - as in PySpark
    ) -> Dataset:
        """The rows of files.

        Example:
            >>> ws.read.load("orders/").count()
            3
        """
        reader = self.options(**options)
        reader = reader if format is None else reader.format(format)
        reader = reader if schema is None else reader.schema(schema)
        return reader._dataset(path)  # noqa: SLF001 - its own

    def parquet(self, *paths: str | os.PathLike[str], **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The rows of Parquet files, read natively.

        Example:
            >>> ws.read.parquet("orders/").count()
            3
        """
        return self.load([path_text(p, "parquet") for p in paths], "parquet", **options)

    def csv(
        self,
        path: str | list[str],
        schema: StructType | str | None = None,
        *more: Any,  # noqa: ANN401 - as in PySpark
        **options: Any,  # noqa: ANN401 - as in PySpark
    ) -> Dataset:
        """The rows of CSV files, read by Spark. `ws.read_csv` reads them natively.

        Options are those of Spark's `csv`, by position or by name.

        Example:
            >>> ws.read.csv("orders.csv", header=True).columns
            ['cust_id', 'amount']
        """
        return self._by_spark("csv", path, schema, *more, **options)

    def json(
        self,
        path: str | list[str],
        schema: StructType | str | None = None,
        *more: Any,  # noqa: ANN401 - as in PySpark
        **options: Any,  # noqa: ANN401 - as in PySpark
    ) -> Dataset:
        """The rows of JSON files, read by Spark. `ws.read_json` reads them natively.

        Options are those of Spark's `json`, by position or by name.

        Example:
            >>> ws.read.json("orders.json", "cust_id BIGINT").columns
            ['cust_id']
        """
        return self._by_spark("json", path, schema, *more, **options)

    def orc(self, path: str | list[str], *more: Any, **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The rows of ORC files, read by Spark.

        Example:
            >>> import os
            >>> ws.spark.range(3).write.orc(os.path.abspath("numbers.orc"), mode="overwrite")
            >>> ws.read.orc("numbers.orc").count()
            3
        """
        return self._by_spark("orc", path, *more, **options)

    def text(self, paths: str | list[str], *more: Any, **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The lines of text files, read by Spark.

        Example:
            >>> ws.read.text("orders.csv").columns
            ['value']
        """
        return self._by_spark("text", paths, *more, **options)

    def xml(self, path: str | list[str], *more: Any, **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The rows of XML files, read by Spark; options are those of Spark's `xml`.

        Example:
            >>> from pathlib import Path
            >>> _ = Path("orders.xml").write_text("<all><order><amount>1</amount></order></all>")
            >>> ws.read.xml("orders.xml", rowTag="order").columns
            ['amount']
        """
        return self._by_spark("xml", path, *more, **options)

    def jdbc(self, url: str, table: str, *more: Any, **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The rows of a table of a database, read by Spark; arguments are those of Spark's `jdbc`.

        Example:
            >>> reader = ws.read.jdbc  # reader("jdbc:postgresql://host/shop", "orders")
        """
        return self._frame(self._reader().jdbc(url, table, *more, **options))

    def changes(self, *arguments: Any, **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The changes of a table of Spark's catalog, read by Spark.

        Example:
            >>> reader = ws.read.changes  # reader("shop.orders")
        """
        return self._frame(self._reader().changes(*arguments, **options))

    def table(self, tableName: str) -> Dataset:  # noqa: N803 - as in PySpark
        """A view, or a table of Spark's catalog.

        Example:
            >>> ws.view("orders", orders)
            >>> ws.read.table("orders").count()
            3
        """
        return self._runtime.datasets.table(tableName)

    def _dataset(self, path: str | os.PathLike[str] | list[str] | None) -> Dataset:
        form, is_plain = self._format.lower(), self._schema is None and not self._options
        if form in _NATIVE and is_plain:
            if not path:
                raise UserError("load() has no path\n  to fix: name a file or a folder")
            return self._runtime.datasets.read_files(path, form)
        text = path_text(path, "load") if isinstance(path, str | os.PathLike) else None
        if form == "delta" and self._is_native_delta and text is not None and is_reached(text):
            given = self._options.get("versionAsOf")
            version = None if given is None else int(given)
            return self._runtime.datasets.read_delta(text, version, None)
        if form == "iceberg" and text is not None and self._is_native_iceberg(text):
            place = _whole_path(text) if "/" in text else text
            return self._runtime.datasets.read_iceberg(place, None, self._snapshot)
        reader, paths = self._reader(), None if path is None else _whole_paths(path)
        frame = reader.load() if paths is None else reader.load(paths)
        return self._frame(frame, [self._format, paths])

    @property
    def _is_native_delta(self) -> bool:
        """Whether a Delta table is read as by `ws.read_delta`; else Spark's connector reads it."""
        version = str(self._options.get("versionAsOf", 0))
        is_plain = self._schema is None and self._options.keys() <= {"versionAsOf"}
        return is_plain and version.isdigit()

    def _is_native_iceberg(self, table: str) -> bool:
        """Whether an Iceberg table is read as by `ws.read_iceberg`; else Spark's connector does."""
        if self._schema is not None or len(self._options) > 1 or missing_modules("iceberg"):
            return False
        for name, value in self._options.items():
            is_number = str(value).isdecimal()
            if name.lower() not in _SNAPSHOT_OPTIONS or (name.lower() == _ID and not is_number):
                return False
        from millrace.tables.iceberg.iceberg_catalogs import is_configured  # noqa: PLC0415 - an extra

        return is_reached(table) and is_configured(table)

    @property
    def _snapshot(self) -> int | str | None:
        """The snapshot that an option names: by its id, or by a branch or a tag."""
        for name, value in self._options.items():
            return int(value) if name.lower() == _ID else str(value)
        return None

    def _reader(self) -> Any:  # noqa: ANN401 - PySpark's reader, of either kind
        """Spark's own reader, with what was chosen."""
        reader = self._runtime.spark.read.format(self._format).options(**self._options)
        return reader if self._schema is None else reader.schema(self._schema)

    def _by_spark(self, method: str, path: Any, *arguments: Any, **options: Any) -> Dataset:  # noqa: ANN401
        """The rows of a method of Spark's reader that names a format."""
        paths = _whole_paths(path)
        frame = getattr(self._reader(), method)(paths, *arguments, **options)
        is_named = isinstance(paths, str | list)  # Rows that were given have no name.
        call = [method, paths, arguments, sorted(options.items())] if is_named else None
        return self._frame(frame, call)

    def _frame(self, frame: DataFrame, call: list[Any] | None = None) -> Dataset:
        """The rows of a DataFrame; `call` is the format and what the reader was given."""
        whole = None if call is None else [*call, self._schema, sorted(self._options.items())]
        return self._runtime.datasets.read_frame(frame, None, whole)


def _whole_paths(path: Any) -> Any:  # noqa: ANN401 - as in PySpark
    """Paths from the root on; rows of texts, which Spark reads as well, as a DataFrame."""
    if isinstance(path, Dataset):
        return path.to_spark()
    if isinstance(path, str | os.PathLike):
        return _whole_path(path)
    return [_whole_path(part) for part in path] if isinstance(path, list | tuple) else path


def _whole_path(path: str | os.PathLike[str]) -> str:
    """A path from the root on: Spark's process may have another working folder."""
    text = path_text(path, "load")
    return text if "://" in text or text.startswith("file:") else os.path.abspath(text)
