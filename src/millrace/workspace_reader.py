"""`ws.read`, with the calls of `spark.read`. Spark's own reader reads what is not read natively."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from millrace.datasets.dataset import Dataset
from millrace.errors import UserError
from millrace.names import path_text
from millrace.spark.workspace_runtime import WorkspaceRuntime

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NATIVE: Final = frozenset({"parquet"})
"""Formats whose files are read natively as long as no schema and no option is given."""


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
        **options: Any,  # noqa: ANN401 - as in PySpark
    ) -> Dataset:
        """The rows of CSV files, read by Spark. `ws.read_csv` reads them natively.

        Example:
            >>> ws.read.csv("orders.csv", header=True).columns
            ['cust_id', 'amount']
        """
        return self.load(path, "csv", schema, **options)

    def json(
        self,
        path: str | list[str],
        schema: StructType | str | None = None,
        **options: Any,  # noqa: ANN401 - as in PySpark
    ) -> Dataset:
        """The rows of JSON files, read by Spark. `ws.read_json` reads them natively.

        Example:
            >>> ws.read.json("orders.json", "cust_id BIGINT").columns
            ['cust_id']
        """
        return self.load(path, "json", schema, **options)

    def orc(self, path: str | list[str], **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The rows of ORC files, read by Spark.

        Example:
            >>> import os
            >>> ws.spark.range(3).write.orc(os.path.abspath("numbers.orc"), mode="overwrite")
            >>> ws.read.orc("numbers.orc").count()
            3
        """
        return self.load(path, "orc", **options)

    def text(self, paths: str | list[str], **options: Any) -> Dataset:  # noqa: ANN401 - as in PySpark
        """The lines of text files, read by Spark.

        Example:
            >>> ws.read.text("orders.csv").columns
            ['value']
        """
        return self.load(paths, "text", **options)

    def table(self, name: str) -> Dataset:
        """A view, or a table of Spark's catalog.

        Example:
            >>> ws.view("orders", orders)
            >>> ws.read.table("orders").count()
            3
        """
        return Dataset(self._runtime.views.table(name), self._runtime.dataset_runner())

    def _dataset(self, path: str | os.PathLike[str] | list[str] | None) -> Dataset:
        form, is_plain = self._format.lower(), self._schema is None and not self._options
        if form in _NATIVE and is_plain:
            if not path:
                raise UserError("load() has no path\n  to fix: name a file or a folder")
            return self._runtime.read_files(path, form)
        reader = self._runtime.spark.read.format(self._format).options(**self._options)
        if self._schema is not None:
            reader = reader.schema(self._schema)
        if path is None:
            return self._runtime.read_frame(reader.load(), None)
        paths = [path] if isinstance(path, str | os.PathLike) else path
        return self._runtime.read_frame(reader.load([_whole_path(p) for p in paths]), None)


def _whole_path(path: str | os.PathLike[str]) -> str:
    """A path from the root on: Spark's process may have another working folder."""
    text = path_text(path, "load")
    return text if "://" in text or text.startswith("file:") else os.path.abspath(text)
