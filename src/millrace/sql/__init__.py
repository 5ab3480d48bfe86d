"""Spark SQL expressions: parsed, typed as Spark types them, and written for DuckDB."""
