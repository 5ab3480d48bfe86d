"""Spark SQL expressions: parsed, typed with Spark's rules, and written for DuckDB."""
