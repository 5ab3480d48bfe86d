"""Prompt steps: the calls that ask a model for each row."""
