"""Runs shuffles and queries, stage by stage, on whatever runs tasks. No pyspark here."""
