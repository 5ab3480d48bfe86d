"""Looking after a workspace: checking it, copying it, and removing what is too old."""
