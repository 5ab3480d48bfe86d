"""Dates, times, intervals and their texts, as Spark has them."""
