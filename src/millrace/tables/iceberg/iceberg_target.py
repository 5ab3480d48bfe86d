"""An Iceberg table that a sink writes to.

It carries what opens its catalog, in memory. Invariant: its text and its address have no property
of the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.config import Config
from millrace.errors import UserError
from millrace.extras import import_for
from millrace.names import shown
from millrace.storage.storage_options import StorageOptions
from millrace.tables.iceberg.iceberg_catalogs import (
    CATALOG_FOR_WRITING,
    is_place,
    load_catalog,
    opening,
    within,
)
from millrace.tables.row_choice import KeyRowsMaker
from millrace.tables.table_port import TableFileWriter
from millrace.text import is_whole

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from millrace.tables.iceberg.iceberg_commits import IcebergCommits

_WHAT: Final = "writing to an Iceberg table"
_KEPT_MAX: Final = 1_000_000
_MADE_WITH: Final = {"commit.manifest-merge.enabled": "true"}
"""A table with many commits keeps few manifests, so that each commit reads and writes few."""

_SHORT_HISTORY: Final = {"write.metadata.delete-after-commit.enabled": "true"}
"""The last 100 metadata files are kept then, pyiceberg's and Spark's default."""


@dataclass(frozen=True, slots=True)
class IcebergTarget:
    """See `TableTarget`."""

    table: str
    catalog_name: str
    catalog_type: type[Catalog] = field(repr=False)
    properties: StorageOptions
    """Of the catalog. As options of storage they travel to tasks apart from what Spark writes."""
    keep_snapshots: int | None = None
    """How many snapshots a commit leaves in the table; None for all."""
    method: str = "sink_iceberg"
    keys: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """See `TableTarget.where`."""
        return f"iceberg {self.catalog_name}.{self.table}"

    def check(self, schema: pa.Schema, config: Config, *, who: str) -> None:
        """See `TableTarget.check`. A table that is made has the columns of the rows."""
        del config
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError  # noqa: PLC0415

        from millrace.tables.iceberg.iceberg_writer import check_rows  # noqa: PLC0415 - an extra

        with opening(self.table, self.properties.given(), who):
            catalog = self._catalog()
            try:
                table = catalog.load_table(self.table)
            except NoSuchTableError:
                try:
                    table = catalog.create_table(self.table, schema, properties=self._made_with)
                except TableAlreadyExistsError:  # Somebody else made it just now.
                    table = catalog.load_table(self.table)
            check_rows(schema, table, who=who)

    def writer(self, schema: pa.Schema, config: Config, *, who: str) -> TableFileWriter:
        """See `TableTarget.writer`."""
        del config
        from millrace.tables.iceberg.iceberg_writer import IcebergFiles, check_rows  # noqa: PLC0415

        with opening(self.table, self.properties.given(), who):
            table = self.load()
            check_rows(schema, table, who=who)
            return IcebergFiles(table.metadata, table.io)

    def commits(
        self, application: str, config: Config, key_rows: KeyRowsMaker | None = None
    ) -> IcebergCommits:
        """See `TableTarget.commits`."""
        del config, key_rows
        from millrace.tables.iceberg.iceberg_commits import IcebergCommits  # noqa: PLC0415

        return IcebergCommits(
            self.load, self.table, application, self.properties.given(), self.keep_snapshots
        )

    def upkeep(self, config: Config) -> None:
        """See `TableTarget.upkeep`: pyiceberg rewrites no files."""
        del config

    @property
    def _made_with(self) -> dict[str, str]:
        """The properties of a table that is made."""
        return _MADE_WITH if self.keep_snapshots is None else _MADE_WITH | _SHORT_HISTORY

    def load(self) -> Table:
        """The table as it is now."""
        return self._catalog().load_table(self.table)

    def _catalog(self) -> Catalog:
        return self.catalog_type(self.catalog_name, **self.properties.given())


def target_of(
    table: Any,  # noqa: ANN401 - checked
    catalog: object,
    *,
    call: str,
    keep_snapshots: int | None = None,
) -> IcebergTarget:
    """The table that a call names, in a catalog that takes commits."""
    import_for("pyiceberg.io.pyarrow", "iceberg", _WHAT)
    if not isinstance(table, str) or "." not in table or is_place(table):
        raise UserError(
            f"{call}: {CATALOG_FOR_WRITING}\n  found: {table!r}\n"
            '  to fix: give "db.table", and catalog='
        )
    if keep_snapshots is not None and not is_whole(keep_snapshots, 1, _KEPT_MAX):
        raise UserError(
            f"{call}: keep_snapshots is {shown(keep_snapshots)}\n"
            "  to fix: give a whole number from 1 on, or leave it out to keep all"
        )
    with opening(table, catalog, call):
        opened = load_catalog(catalog, table)
    properties = StorageOptions(tuple(sorted(opened.properties.items())))
    return IcebergTarget(
        within(table, catalog), opened.name, type(opened), properties, keep_snapshots
    )
