"""What a workspace has, in few files: the runs."""
