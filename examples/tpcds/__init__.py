"""TPC-DS: its data, its 99 queries as SQL text, and DuckDB's answers."""
