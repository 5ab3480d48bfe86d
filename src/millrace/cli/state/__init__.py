"""Commands that show the state of a workspace: in SQL and as pages."""
