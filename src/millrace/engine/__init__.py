"""The work of a task: SQL for DuckDB over Arrow streams, and users' functions between queries."""
