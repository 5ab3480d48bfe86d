"""Rows of the files of tables, chosen by the engine."""
