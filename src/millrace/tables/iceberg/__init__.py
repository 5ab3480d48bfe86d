"""Iceberg tables, by pyiceberg: what a snapshot consists of, and commits to a table."""
