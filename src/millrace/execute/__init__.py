"""Runs the stages of a query: who reads what, what is lost, what is published. No pyspark here."""
