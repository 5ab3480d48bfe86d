"""The session: assigns journals to slices, gathers progress, and hands out checkpoints."""
