"""The calls of `mr.Workspace`, by subject."""
