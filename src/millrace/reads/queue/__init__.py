"""A member's queue: stages the rows that slices send it, until a checkpoint shows them."""
