"""Tables of others: versions of them that are read, and commits to them."""
