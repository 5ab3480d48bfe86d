"""Builds functions that make several rows of one."""
