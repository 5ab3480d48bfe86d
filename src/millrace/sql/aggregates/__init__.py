"""Aggregate functions: parsed, typed, and written for DuckDB in one step or in two."""
