"""Functions over Arrow arrays that DuckDB calls where it has none with Spark's answer."""
