"""Workspaces in buckets: one contract of calls, kept by S3, Google and Azure."""
