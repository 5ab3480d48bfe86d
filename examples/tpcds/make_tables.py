"""Writes tables, queries and answers. It runs in the environment that `data.py` makes."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import duckdb_extension_tpcds  # type: ignore[import-not-found]  # it is there

MEMORY_MAX = "6GB"
SPARKS_NULLS = "nulls_first_on_asc_last_on_desc"
"""The queries leave open where nulls are in an order; the answers have them where Spark has."""


def main(scale: str, folder: Path) -> None:
    """Make the data of a scale factor in a folder."""
    home = Path(duckdb_extension_tpcds.__file__).parent
    extension = next(home.rglob("*.duckdb_extension"))
    for part in ("tables", "queries", "answers"):
        (folder / part).mkdir(parents=True)
    database = folder / "made.duckdb"  # Of a large scale the tables do not fit into memory.
    connection = duckdb.connect(database, config={"memory_limit": MEMORY_MAX})
    connection.execute(f"LOAD '{extension}'")
    connection.execute(f"CALL dsdgen(sf={float(scale)})")
    for (name,) in connection.execute("SHOW TABLES").fetchall():
        path = folder / "tables" / f"{name}.parquet"
        connection.execute(f"COPY {name} TO '{path}' (FORMAT parquet)")
    connection.execute(f"SET default_null_order = '{SPARKS_NULLS}'")
    for number, text in connection.execute("FROM tpcds_queries()").fetchall():
        (folder / "queries" / f"q{number:02}.sql").write_text(text, encoding="utf-8")
        path = folder / "answers" / f"q{number:02}.parquet"
        connection.execute(f"COPY ({text.strip().rstrip(';')}) TO '{path}' (FORMAT parquet)")
    connection.close()
    database.unlink()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
