"""Datasets: the methods of a query, by subject."""
