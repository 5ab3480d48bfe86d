"""Rows that a step refused: read, and given back to their step."""
