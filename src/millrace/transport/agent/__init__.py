"""Agents: a process on each host serves the shuffle files of its folder over Arrow Flight."""
