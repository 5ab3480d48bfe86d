"""Builds operators of users' functions: over batches, all rows of a task, groups and windows."""
