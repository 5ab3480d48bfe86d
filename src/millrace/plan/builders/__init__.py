"""Builds operators from the arguments of a user's call, and refuses what cannot be built."""
