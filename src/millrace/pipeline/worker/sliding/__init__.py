"""The call files of a turn, and the pace of its calls over all workers."""
