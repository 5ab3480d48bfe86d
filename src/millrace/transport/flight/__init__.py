"""The base of all Flight services: one server behind a gate, one client, and their messages."""
