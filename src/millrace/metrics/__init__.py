"""Metrics: what is measured, under which name and in which unit, and counts of this process."""
