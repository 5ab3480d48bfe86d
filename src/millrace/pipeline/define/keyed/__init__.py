"""The steps with state, as a user writes them."""
