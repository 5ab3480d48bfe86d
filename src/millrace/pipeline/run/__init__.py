"""Runs of a job: their start, lease, status and reset, and the upkeep of the job's journals."""
