"""Runs shuffles and queries, stage by stage, on a task runner. No pyspark here."""
