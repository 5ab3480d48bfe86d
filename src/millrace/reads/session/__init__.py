"""The session: says who reads what, gathers progress, and hands out checkpoints."""
