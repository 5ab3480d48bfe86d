"""What a task does with rows: DuckDB over Arrow streams."""
