"""Rows saved by key: what map tasks wrote for every partition, outliving the application."""
