"""Values too large for journals: files in the workspace, and rows that refer to them."""
