"""Finds Iceberg tables: in a catalog, as pyiceberg finds it, or by their metadata file.

Invariant: the properties of a catalog are in no text and in no file. A message about a catalog that
cannot be reached shows none of their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UserError
from millrace.extras import import_for

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_WHAT: Final = "reading or writing an Iceberg table"
_METADATA: Final = ".metadata.json"
_SHOWN_MAX: Final = 300
_DEFAULT: Final = "default"
"""The catalog that pyiceberg takes if none is named."""
CATALOG_FOR_WRITING: Final = "an Iceberg table is written to by its name in a catalog"


def load_table(table: object, catalog: object, *, call: str) -> Table:
    """A table that a user named.

    Args:
        table: `db.table`, the place of a metadata file or of a table's folder, or a `Table`.
        catalog: a catalog's name, its properties, a `Catalog`, or None for the default one.
        call: the call that asks, for errors.
    """
    import_for("pyiceberg.io.pyarrow", "iceberg", _WHAT)
    from pyiceberg.table import StaticTable, Table  # noqa: PLC0415 - an extra brings it

    if isinstance(table, Table):
        return table
    if not isinstance(table, str) or not table:
        raise UserError(
            f"{call} has no table\n  found: {type(table).__name__}\n"
            '  to fix: give "db.table", or the place of its metadata file'
        )
    with opening(table, catalog, call):
        if is_place(table):
            given = catalog.items() if isinstance(catalog, Mapping) else ()
            return StaticTable.from_metadata(table, {str(k): str(v) for k, v in given})
        return load_catalog(catalog, table).load_table(within(table, catalog))


def load_catalog(catalog: object, table: str) -> Catalog:
    """The catalog that a user named; None: the one of a table's first name, or the default one."""
    from pyiceberg.catalog import Catalog  # noqa: PLC0415 - an extra brings it
    from pyiceberg.catalog import load_catalog as load  # noqa: PLC0415 - as above

    if isinstance(catalog, Catalog):
        return catalog
    if isinstance(catalog, Mapping):
        properties = {str(name): value for name, value in catalog.items()}
        return load(properties.pop("name", None), **properties)
    if catalog is None:
        return load(_first_name(table))
    if isinstance(catalog, str):
        return load(catalog)
    raise UserError(
        f"catalog= is no catalog\n  found: a {type(catalog).__name__}\n"
        "  to fix: give its name, its properties as a mapping, or a catalog of pyiceberg"
    )


def is_place(table: str) -> bool:
    """Whether a text is the place of a table, not its name in a catalog."""
    return "/" in table or table.endswith(_METADATA)


def is_configured(table: str) -> bool:
    """Whether a table is a place, or pyiceberg is configured with a catalog that it can be in."""
    from pyiceberg.catalog import list_catalogs  # noqa: PLC0415 - an extra brings it

    return is_place(table) or _first_name(table) is not None or _DEFAULT in list_catalogs()


def within(table: str, catalog: object) -> str:
    """A table's name inside of its catalog."""
    is_first = catalog is None and _first_name(table) is not None
    return table.partition(".")[2] if is_first else table


def _first_name(table: str) -> str | None:
    """The first of a table's names, if it is one of a catalog that is configured."""
    from pyiceberg.catalog import list_catalogs  # noqa: PLC0415 - an extra brings it

    first, _, rest = table.partition(".")
    return first if "." in rest and first in list_catalogs() else None


@contextmanager
def opening(table: str, catalog: object, call: str) -> Iterator[None]:
    """Name the table in an error, without a value of the catalog's properties."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError  # noqa: PLC0415 - as above

    try:
        yield
    except UserError:
        raise
    except (NoSuchTableError, NoSuchNamespaceError):
        raise UserError(
            f"{call}: there is no Iceberg table {table}\n"
            "  found: the catalog is there, and has no table of that name\n"
            "  to fix: check the name, and catalog="
        ) from None
    except ModuleNotFoundError as error:
        raise UserError(
            f"{call}: the Iceberg table {table} needs a package that is not installed here\n"
            f"  found: no {error.name}\n"
            f"  to fix: install what pyiceberg needs for this catalog or store, here and on the "
            f"executors: pip install {error.name}"
        ) from None
    except Exception as error:  # noqa: BLE001 - each kind of catalog has its own
        raise UserError(
            f"{call}: the Iceberg table {table} cannot be opened\n"
            f"  found: {without_values(error, catalog)}\n"
            "  to fix: check catalog=, or what .pyiceberg.yaml and PYICEBERG_CATALOG__* say"
        ) from None


def without_values(error: BaseException, catalog: object) -> str:
    """What an error says, without the values of a catalog's properties."""
    text = next(iter(str(error).strip().splitlines()), "")[:_SHOWN_MAX]
    for value in sorted(_values(catalog), key=len, reverse=True):
        text = text.replace(value, "...")
    return f"{type(error).__name__}: {text}"


def _values(catalog: object) -> set[str]:
    from pyiceberg.catalog import list_catalogs  # noqa: PLC0415 - an extra brings it
    from pyiceberg.utils.config import Config  # noqa: PLC0415 - as above

    known: list[Mapping[str, Any]] = []
    if isinstance(catalog, Mapping):
        known.append(catalog)
    else:
        known.append(getattr(catalog, "properties", None) or {})
        known += [Config().get_catalog_config(name) or {} for name in list_catalogs()]
    texts = {str(value) for properties in known for value in properties.values()}
    return {text for text in texts if len(text) > 3}  # noqa: PLR2004 - shorter ones are words
