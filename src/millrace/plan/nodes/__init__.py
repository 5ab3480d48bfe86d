"""The operators of a plan, one kind in a file. Values only."""
