"""Operators that make several rows of one."""
