"""Parts of a plan that several other parts read."""
