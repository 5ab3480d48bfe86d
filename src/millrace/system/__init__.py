"""The state of a workspace as tables: read where it lies, without Spark and without an owner."""
